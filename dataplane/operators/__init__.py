"""Operators: what a pipeline is made of.

base          the contract that every operator keeps
registry      finding operators by name (entry points)
decode, scale, crop, convert, watermark, super_res, encode, mux      the ones that come with the product
"""
