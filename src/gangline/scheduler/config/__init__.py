"""Reads Volcano's scheduler configuration file into SchedulerSettings.

`volcano` reads actions, tiers and plug-ins, `weights` the arguments of scoring plug-ins.
"""
