"""How Django's admin writes times: to the second, and with their zone. What is not here is as Django has it."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
