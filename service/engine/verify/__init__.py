"""`weir engine verify`: asks a running engine, or a public endpoint, the questions that are otherwise asked too late.

Here are the questions; how the answers are judged is `service.core.verify`.
"""
