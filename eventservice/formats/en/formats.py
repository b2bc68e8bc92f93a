"""Formats of times in Django's admin: to the second, with the time zone. All others are Django's defaults."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
