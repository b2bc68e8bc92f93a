"""Django's database backend for MariaDB servers."""

from eventservice.db.dialects.mariadb.dialect import MariaDBDialect
from eventservice.db.dialects.mysql_family.backend import FamilyWrapper


class DatabaseWrapper(FamilyWrapper):
    dialect = MariaDBDialect()
    mysql_is_mariadb = True
