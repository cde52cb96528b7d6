"""What can be wrong with a data set."""

from ptrl.core import PtrlError


class DataSetError(PtrlError):
    """A data set that cannot be used; the message names file, line and column."""
