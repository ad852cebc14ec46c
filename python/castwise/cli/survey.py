"""`castwise survey`: where the magnitudes of a checkpoint lie, and what formats would lose."""

import argparse
import sys
from functools import partial

from castwise import checkpoint
from castwise.checkpoint.surveying import default_targets, survey_sheet
from castwise.cli._arguments import add_arguments, add_output, names_argument
from castwise.cli._output import OK
from castwise.cli._parser import describe
from castwise.cli._results import ProgressLine, shown_result

_SURVEY = """\
Count where the magnitudes of a checkpoint's floating tensors lie, and predict the loss
of formats and schemes for each tensor: the ratio of signal to noise in dB, and the
share of elements that would become zero, infinite or NaN. castwise reads every tensor
once, and writes nothing. Matrices come before vectors, and tensors with the least
ratio for the last target come first.
"""
_EXIT_CODES = """\
exit codes:
  0  the tensors were surveyed
  2  an error, such as a checkpoint that is quantized
"""

_EXAMPLES = ("survey model", "survey model --targets bfloat16,nvfp4 --top 10 --html survey.html")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _SURVEY, _EXIT_CODES, examples=_EXAMPLES)
    add_arguments(parser, "source")
    parser.add_argument(
        "--targets",
        metavar="D,S",
        type=names_argument,
        help=f"formats, without a scale, and schemes (default: {','.join(default_targets())})",
    )
    add_arguments(parser, "--threads")
    add_output(parser, "--html", "--top", formats=("--json", "--all"))
    parser.set_defaults(run=_survey, quiet=False)


def _survey(options: argparse.Namespace) -> int:
    with (
        shown_result(options, partial(survey_sheet, every=options.all)) as output,
        ProgressLine(sys.stderr) as progress,
    ):
        output.result = checkpoint.survey_file(
            options.source,
            options.targets,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    return OK
