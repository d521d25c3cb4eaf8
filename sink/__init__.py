"""The PySpark sink: installed as brokerd.sink."""
