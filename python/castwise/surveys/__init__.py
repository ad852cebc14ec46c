"""Surveys: where the magnitudes of an array lie, and what formats and schemes would lose of it.

A survey counts the elements of an array once. What a cast or a quantization would lose is then
predicted from its tables, for any number of formats and schemes, without the array. A log of
gradients surveys one step in `every` of a training run.
"""

from castwise.surveys._gradients import GradientLog, GradientSurvey
from castwise.surveys._loss_scales import LossScales
from castwise.surveys._prediction import Prediction
from castwise.surveys._survey import Survey, pictured_ranges, survey
from castwise.surveys._tables import Binades, Blocks

__all__ = [
    "Binades",
    "Blocks",
    "GradientLog",
    "GradientSurvey",
    "LossScales",
    "Prediction",
    "Survey",
    "pictured_ranges",
    "survey",
]
