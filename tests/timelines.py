"""A timeline made by hand, for the tests of what shows one."""

from runtime.timeline import Round, Run, Timeline

# Seconds. The draft reads beside the target, proposes on its own, and looks ahead twice.
THREE_ROUNDS = Timeline(
    10.0,
    rounds=(
        Round(11.0, 13.0, 2, 1, 70, hit=False),
        Round(13.5, 15.0, 2, 2, 80, hit=True),
        Round(15.0, 16.0, 0, 0, 90),
    ),
    target=(
        Run(10.0, 11.0, "read"),
        Run(12.0, 12.75, "verify", 3),
        Run(13.5, 14.5, "verify", 3),
        Run(15.0, 15.5, "verify", 1),
    ),
    draft=(
        Run(10.25, 10.5, "read"),
        Run(11.25, 11.75, "propose"),
        Run(12.0, 12.5, "look ahead"),
        Run(13.75, 14.75, "look ahead"),
    ),
    waits=(Run(11.25, 12.0, "wait for the draft"),),
    deliveries=(Run(13.0, 13.25, "make text"), Run(16.0, 16.25, "make text")),
)
