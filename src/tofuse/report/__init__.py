"""The report of a compilation: as data, text, HTML page, trace and repro files."""
