"""Mirror speculative decoding: a draft and a target model at work at the same time."""
