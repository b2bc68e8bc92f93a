from tests.api.conftest import *
from tests.api.test_made_up_requests import *
import traceback
def test_dbg(acme, operator, monkeypatch):
    from django.db.backends.base.base import BaseDatabaseWrapper as B
    orig=B.close
    def close(self):
        traceback.print_stack(limit=14); return orig(self)
    monkeypatch.setattr(B,"close",close)
    make_up(acme, operator, 30)
