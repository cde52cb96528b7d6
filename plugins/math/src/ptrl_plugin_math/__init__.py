"""Math answer checking."""

from ptrl_plugin_math.extract import NoAnswerError, extract_answer
from ptrl_plugin_math.number import OverLimitError, parse_number

__all__ = ["NoAnswerError", "OverLimitError", "extract_answer", "parse_number"]
