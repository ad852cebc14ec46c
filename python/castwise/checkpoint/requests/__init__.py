"""What a conversion is to do, and how it is carried out; `options.py` has every option."""
