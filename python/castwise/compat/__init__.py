"""The same policies under the names and manners of other systems.

`keras` is Keras 3, `tf_keras` TF 2 and its 2.4 experimental API, `jmp` DeepMind's jmp, `torch` its
gradient scaler. Where
castwise differs from them is listed in `divergences.md` beside this file.
"""
