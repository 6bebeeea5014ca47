"""Schema and transactions: tables, migrations, rows of records, differences of servers."""
