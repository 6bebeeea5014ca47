"""The controller loops: each watches objects, asks a pure module for a plan, and writes."""
