"""Django's database backend for MySQL servers."""

from eventservice.db.dialects.mysql.dialect import MySQLDialect
from eventservice.db.dialects.mysql_family.backend import FamilyWrapper


class DatabaseWrapper(FamilyWrapper):
    dialect = MySQLDialect()
    mysql_is_mariadb = False
