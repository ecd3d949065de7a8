"""Reading priors that a command line names."""

from pathlib import Path

from brevisfs import synth
from brevisfs.cli._files import opened


def read_prior(path: Path) -> synth.Prior:
    """The prior in a file. Raises BadPrior, which names it, and what opening raises."""
    with opened(path) as fd, open(fd, "rb", closefd=False) as file:
        text = file.read()
    try:
        return synth.prior_from_json(text)
    except synth.BadPrior as error:
        raise synth.BadPrior(f"{path}: {error}") from None
