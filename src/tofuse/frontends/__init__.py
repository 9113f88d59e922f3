"""Frontends other than torch programs: nvFuser's FusionDefinition."""
