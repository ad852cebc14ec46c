"""Cast a whole checkpoint, a file or folders of shards, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Literal, Unpack, overload

from castwise._dtype_map import DtypeMap
from castwise._options import FindingKind, Like, Nan, Overflow, Role, Rounding
from castwise.checkpoint._arguments import CastArguments, MapArgument, PathArgument
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import LOSSES, Progress
from castwise.checkpoint.requests import CastRequest, carry_out
from castwise.checkpoint.summary import CastSummary


@overload
def cast_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = None,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[CastArguments],
) -> CastSummary: ...
@overload
def cast_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = None,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[CastArguments],
) -> CastPlan: ...
@overload
def cast_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = None,
    *,
    dry_run: bool,
    **arguments: Unpack[CastArguments],
) -> CastSummary: ...
def cast_file(
    source: PathArgument,
    destination: PathArgument,
    dtype: object = None,
    *,
    dtype_map: MapArgument | DtypeMap | None = None,
    policy: object = None,
    role: Role = "variable",
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    seed: int | None = None,
    like: Like | None = None,
    threads: int | None = None,
    assume: str | Mapping[str, str] | None = None,
    architecture: PathArgument | None = None,
    overwrite: bool = False,
    resumable: bool = False,
    resume: bool = False,
    keep_config: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    measure: bool = False,
    raw: bool = False,
    as_bytes: bool = False,
    part: str | tuple[int, int] | None = None,
    executor: Executor | None = None,
    fail_on: FindingKind | Iterable[FindingKind] = LOSSES,
    max_zeros: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Cast the tensors of a checkpoint and write a new one.

    `source` is a `.safetensors`, `.npz`, `.npy`, `.h5` or `.keras` file, a file of torch (`.pt`,
    `.pth`, `.bin`, `.ckpt`), or a folder with safetensors shards, in itself or in folders of it, as
    diffusers writes pipelines; where a folder has none, with those of torch that transformers,
    diffusers and peft load (`pytorch_model.bin`), which become safetensors. Packages can add other
    suffixes (`castwise.checkpoint.containers.protocol`). `destination` is one of these, not of
    torch, and may be `source` itself. A folder becomes a folder, or one file if `destination` ends
    with `.safetensors`. Both may be URLs of object stores (`s3://...`), but not
    of HDF5 files, and repositories of the Hugging Face Hub: `org/name` to read where there is no
    such path, `hf://org/name` to read, or to push to as one commit with a model card. It appears,
    or is replaced, when it is complete; a run that is stopped at any moment leaves what was there
    before, except of a folder on a store, which is replaced file by file. Tensors are read, cast
    and written in pieces of about a mebibyte, so memory does not grow with their size.

    Metadata is kept, and so, byte for byte, is every tensor that is not to be cast.

    Parameters
    ----------
    source
        What to read.
    destination
        What to write. What is there is replaced only with `overwrite`.
    dtype
        Format for all floating tensors. Integers, bools and complex numbers stay. Names are
        those of the table; numpy's others, as "f8" for float64, are refused, also in `dtype_map`
        and `assume`. A mapping is taken as `dtype_map`, a `DTypePolicy` as `policy`.
    dtype_map
        A mapping, a JSON or TOML file, or the name of a map that comes with castwise
        (`map_names`): regular expression to format; see `DtypeMap`. A key that matches a name
        wholly decides for it; a format of floats concerns floating tensors only, unless the key is
        the whole name. `default` is for the other floating tensors. A map without `default` takes
        `dtype` as that. In a folder of folders the name begins with the folder:
        `unet/conv_in.weight`.
    policy
        Instead of both, a `DTypePolicy` or `DTypePolicyMap`, its name, its config, or a `.json`
        file with the config as Keras writes it. Each floating tensor gets the dtype of its policy.
    role
        Which dtype of the policy: "variable", what variables are kept in, or "compute".
    rounding
        As in `castwise.cast`, like the four after it.
    overflow
        "ieee", "saturate" or "raise".
    nan
        "keep", "raise" or "zero".
    seed
        For stochastic rounding; each tensor draws from `tensor_seed(seed, name)`.
    like
        The library whose bits are wanted, as in `castwise.cast`: it decides rounding, overflow and
        NaN for each pair of formats. A tensor that it rounds twice is refused by name.
    threads
        How many threads may read, cast and write.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Nothing is guessed.
    architecture
        With the name of a map, a file with what the parameters of the model are, as in
        `quantize_file`.
    overwrite
        Replace `destination` if it is a file, or a folder with a checkpoint; also `source` itself.
    resumable
        If the cast of a folder is interrupted, keep the shards that are complete, beside
        `destination`; a warning names them.
    resume
        Go on with what a resumable cast of the same folder kept; the result is the same. Shards
        that are not as they were written are cast again. Resumable itself.
    keep_config
        Leave a folder's `config.json` as it is. Else its `dtype` or `torch_dtype`, also those of a
        model's parts, follow the tensors if all floating ones have become float32, float16 or
        bfloat16; otherwise a warning says what to set.
    include
        Globs of files of a folder to copy that are otherwise left out: `.git` and `.cache`, states
        of optimizers and trainers, and the same weights in other formats or variants. A glob is
        compared with the path in the folder and with the name, of files and of folders.
    exclude
        Globs of files of a folder to leave out, also with tensors.
    max_shard_size
        Divide the tensors anew into shards of at most so many bytes, an int or text such as "5GB"
        or "2GiB", with the names and the index that transformers writes. A file then becomes a
        folder if `destination` is the name of one.
    dry_run
        Write nothing and return what would become of every tensor, a `CastPlan`.
    measure
        With `dry_run`: convert everything all the same, so that the rows have their reports.
        `.npz`, `.h5` and `.keras` need room for one file where the system has temporary ones.
    raw
        Cast codes and scales of quantised weights as if they were plain numbers. Else a cast that
        would change one of them is refused.
    as_bytes
        Whether a safetensors file may hold formats that it has no code for, such as float8_e4m3 or
        int4, as bytes. castwise reads them again; others see numbers of uint8.
    part
        Cast only this part of the bytes, such as "3/16" or `(3, 16)`, and keep it beside
        `destination`; the rows are of its elements. When all parts are cast, by runs that see the
        same files, at the same time or not, `finish` makes the checkpoint of them. A part with
        other arguments is refused, and so is a run without `part` as long as there are parts.
        Only into `.safetensors` and `.npy` files and folders, of tensors that stand uncompressed.
    executor
        Who casts the tensors, in batches of about 256 MiB: a `concurrent.futures.Executor` of
        threads or processes, or of a cluster whose workers see the same files under the same
        paths: `distributed.Client.get_executor()`, `mpi4py.futures.MPIPoolExecutor()`; for Ray a
        class whose `submit(function, batch)` returns
        `ray.remote(function).remote(batch).future()`. The result does not depend on it. A batch
        whose worker is lost, or that is not taken, is cast in this process; an error of a worker
        says that it is one. `threads` is for each batch. Files that `part` is not for are cast in
        this process.
    fail_on
        The kinds of findings (`Finding`), or one, that leave `source` as it was if `destination` is
        the same; () to replace it whatever is lost. Elsewhere the result is written, and
        `CastSummary.findings` lists them.
    max_zeros
        The share of a tensor's nonzero values, from 0 to 1, that may become zero before that is an
        underflow, for `fail_on` and `CastSummary.findings`. By default 1 %, or of weights that are
        quantised what so few bits give: 3 % for 8, 50 % for 4.
    progress
        Called when a tensor begins, now and then within a large one, and at the end. Several
        pieces are in flight, so a tensor may be done by then.

    Returns
    -------
    What each tensor became and what that lost; a `CastPlan` if `dry_run`.

    Raises
    ------
    CheckpointError
        The source is damaged or changes while it is read; what is asked makes no sense for it, such
        as another format for the payload or a scale of a quantised weight without `raw`;
        `destination` is there, or is `source` and a value would be lost; or its file system has
        less room than the result needs.
    ValueError, TypeError
        An option, the map or a format is wrong.
    OverflowError, ValueError
        `overflow="raise"` or `nan="raise"` met such a value; the
        message names tensor, index and value.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> checkpoint.cast_file("model.safetensors", "small.safetensors", "bfloat16")
    <CastSummary 'model.safetensors' -> 'small.safetensors', 1 tensor cast, 0 kept, ...>
    >>> plan = checkpoint.cast_file("model.safetensors", "other.npz", "float16", dry_run=True)
    >>> [(row.name, row.target) for row in plan.rows]
    [('fc.weight', 'float16')]

    """
    return carry_out(CastRequest, **locals())
