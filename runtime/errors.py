"""The errors a user may meet, each a sentence that says what is wrong, where, and what to do."""


class MirrorError(Exception):
    """Base of every error this project raises on purpose."""


class UsageError(MirrorError, ValueError):
    """A setting or a combination of settings that cannot work; nothing was started."""


class BundleError(MirrorError):
    """A bundle is missing, damaged, or made for something this version does not know."""


class BuildError(MirrorError):
    """A bundle could not be built from its source."""


class TextError(MirrorError):
    """A text, a chat template or a tokenizer that cannot be used."""


class ContextError(UsageError):
    """The prompt does not fit in the context."""


class ProviderError(MirrorError):
    """A device or execution provider was asked for and cannot be used."""


class LateError(ProviderError):
    """What was tried on a device was not done in its time; it might have been with more."""


class DraftError(MirrorError):
    """The draft raised, stalled or answered nonsense; generation goes on without it."""
