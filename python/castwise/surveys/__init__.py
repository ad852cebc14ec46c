"""Surveys: where the magnitudes of an array lie, and what formats and schemes would lose of it.

A survey counts the elements of an array once. What a cast or a quantisation would lose is then
predicted from its tables, for any number of formats and schemes, without the array.
"""

from castwise.surveys._prediction import Prediction
from castwise.surveys._survey import Binades, Blocks, Survey, pictured_ranges, survey

__all__ = ["Binades", "Blocks", "Prediction", "Survey", "pictured_ranges", "survey"]
