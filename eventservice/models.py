"""The models of the packages of `eventservice`: Django looks for an app's models here."""

from eventservice.db.totals import Total
from eventservice.operators.models import OperatorAction
from eventservice.runtime.models import Slot

__all__ = ["OperatorAction", "Slot", "Total"]
