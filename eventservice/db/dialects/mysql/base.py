"""Django's MySQL backend on PyMySQL, for MySQL servers. One time per transaction is implemented as for MariaDB."""

from eventservice.db.dialects.mariadb import base
from eventservice.db.dialects.mysql.dialect import MySQLDialect


class DatabaseWrapper(base.DatabaseWrapper):
    dialect = MySQLDialect()
    mysql_is_mariadb = False
