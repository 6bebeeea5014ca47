"""The admission webhook: validates jobs and writes their defaults before they are stored."""
