"""Each option of a conversion, once: its type, default, comment, check and flag of the command.

`Cast`, `Quantize`, `Dequantize` and `Transcode` describe a result, and `Run` how it is made. The
public functions, their stub and the commands are made from the fields.
"""
# ruff: noqa: ANN401  (values of fields of any type)

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from inspect import Parameter
from typing import Any, ClassVar, NamedTuple, NoReturn, dataclass_transform

from castwise._options import (
    Arithmetic,
    Block,
    ConsumerName,
    FindingKind,
    Inputs,
    Like,
    MapArgument,
    MixName,
    Nan,
    Overflow,
    PathArgument,
    Role,
    Rounding,
    Scales,
    TranscodedRecipe,
    TranscodedScheme,
    WrittenRecipe,
    WrittenScheme,
)
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.results.report import FINDINGS, LOSSES, MAX_ZEROS, Progress
from castwise.dtype_policies import DTypePolicyMap
from castwise.quantization.producers.layouts import BF16
from castwise.text.wording import argument, check_switch


class ConversionOption(NamedTuple):
    """What is to be known of an option."""

    # Its paragraph in the documentation of the functions; {choices} are those of `choices`.
    comment: str = ""
    # Its help on the command line, where words in braces are lists; None where it has none.
    help: str | None = None
    # Its name on the command line, if that does not follow from its name in Python.
    flag: str | None = None
    metavar: str | None = None
    # The group of the command's help.
    group: str = "target"
    # The Literal of its values.
    choices: Any = None
    # How its text is read: a row of `castwise.cli._arguments.PARSERS`.
    parse: str | None = None
    # The functions take it without its name, after `source` and `destination`.
    is_positional: bool = False
    # Refuses values before anything is read.
    check: Callable[[object], None] | None = None
    default: Any = Parameter.empty  # if it must be given
    # What its class fills in: its name, and the text of its type.
    name: str = ""
    type: str = ""


def option(
    *, default: Any = Parameter.empty, like: ConversionOption | None = None, **values: Any
) -> Any:
    """Return an option in the place of a value; what is not given is that of another one."""
    return (like or ConversionOption())._replace(default=default, **values)


# Dataclasses of as many fields take three times as long to make, when a command starts.
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class Options:
    """Frozen values of the options that are the attributes of the class."""

    options: ClassVar[dict[str, ConversionOption]] = {}

    def __init_subclass__(cls) -> None:
        """Name the options."""
        cls.options = cls.options | {
            name: value._replace(name=name, type=cls.__annotations__[name])
            for name, value in vars(cls).items()
            if isinstance(value, ConversionOption)
        }

    def __init__(self, **values: Any) -> None:
        """Let each option refuse a value that it cannot have; take mappings as dicts."""
        missing = (name for name, each in self.options.items() if each.default is Parameter.empty)
        if wrong := sorted({*missing} - values.keys() | values.keys() - self.options.keys()):
            raise TypeError(f"{type(self).__name__} lacks {wrong}, or has no such options")
        for name, each in self.options.items():
            value = values.get(name, each.default)
            if each.check is not None:
                each.check(value)
            if each.type == "bool":
                check_switch(name, value)
            # Dicts can be sent to other processes.
            is_mapping = isinstance(value, Mapping) and not isinstance(value, DTypePolicyMap)
            vars(self)[name] = dict(value) if is_mapping else value
        self.check()

    def check(self) -> None:
        """Refuse options that do not go together."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot change: {name}={value!r}")


def _check_submit(value: object) -> None:
    """Refuse what has no `submit`, such as a class instead of its instance."""
    submits = callable(getattr(value, "submit", None)) and not isinstance(value, type)
    if value is not None and not submits:
        raise TypeError(
            f"executor must have submit(), as an Executor of concurrent.futures, not {value!r}"
        )


_INPUTS = ConversionOption(
    comment="Whether the checkpoint states that engines quantize the inputs of quantized "
    'layers. "dynamic": engines quantize inputs while the model runs, as the producer\'s '
    'preset for the scheme describes, and multiply codes by codes. "float8": inputs of MXFP4 '
    'become float8 in groups of 128, as the preset MXFP4XFP8 describes. "none": inputs keep '
    "their dtype, and engines decode the weights. By default the statement that the "
    "producer makes without data.",
    choices=Inputs,
    help="whether the checkpoint states that inputs are quantized while the model runs "
    "(dynamic; float8 beside MXFP4) or not (none); default: what the recipe states without data",
)
_ARCHITECTURE = ConversionOption(
    comment="A file that describes the parameters of a model whose class and type in "
    "`config.json` castwise does not know. A cast takes it together with the name of a map.",
    metavar="FILE",
    parse="local path",
    help="a file that describes the parameters of a model that castwise does not know, in "
    "the format of its table of architectures",
)


class Request(Options):
    """All that decides what is made of the source."""

    command: ClassVar[str]
    # What it does to tensors, as a summary has it.
    action: ClassVar[str]
    # The findings that can be counted.
    kinds: ClassVar[Sequence[str]] = FINDINGS
    # The source may be a file whose tensors must be decoded.
    decodes: ClassVar[bool] = True
    # What is written is not quantized, so that any container can hold it.
    is_plain: ClassVar[bool] = False

    source: PathArgument = option(
        comment="The checkpoint to read: a `.safetensors`, `.npz`, `.npy`, `.h5` or `.keras` "
        "file, a file of torch (`.pt`, `.pth`, `.bin`, `.ckpt`), a folder of shards, a URL of a "
        "store, or `org/name` of the Hugging Face Hub. Conversions other than `cast_file` read a "
        "file of llama.cpp, too.",
        metavar="SRC",
        parse="path",
        help="the checkpoint to read: a file, a folder, a URL of a store, or org/name of the "
        "Hugging Face Hub",
    )
    overwrite: bool = option(
        default=False,
        comment="Replace `destination` if it is a file, or a folder with a checkpoint. It may "
        "be `source` itself.",
        group="files",
        help="replace DST if it is a file, or a folder with a checkpoint; DST may be SRC "
        "itself, unless that loses what --fail-on names",
    )
    include: str | Sequence[str] = option(
        default=(),
        comment="Globs of files of a folder to copy although they are left out by default: "
        "`.git` and `.cache`, states of optimizers and trainers, and the same weights in other "
        "formats or variants. castwise compares a glob with the path in the folder and with the "
        "bare name, of files and of folders.",
        group="files",
        metavar="GLOB",
        help="copy files of a folder that are left out by default: .git and .cache, states of "
        "optimizers and trainers, the same weights in other formats and variants; as often as "
        "needed",
    )
    exclude: str | Sequence[str] = option(
        default=(),
        comment="Globs of files of a folder to leave out, also files with tensors.",
        group="files",
        metavar="GLOB",
        help="leave files of a folder out, also those with tensors; as often as needed",
    )
    max_shard_size: int | str | None = option(
        default=None,
        comment="Divide the tensors anew into shards of at most this size, an int or text such "
        'as "5GB" or "2GiB". Names and index are those that transformers writes. A file becomes '
        "a folder if `destination` is the name of a folder.",
        group="files",
        metavar="SIZE",
        help="divide the tensors into shards of at most this size, such as 5GB or 2GiB; a file "
        "becomes a folder if DST is the name of a folder",
    )


class Run(Options):
    """How a result is made and where it is written; none of it changes a value."""

    destination: PathArgument = option(
        comment="The checkpoint to write: a file or a folder of the kinds that `source` may be, "
        "except files of torch. It may be `source` itself, or `hf://org/name` to push to. A "
        "quantized checkpoint is a folder, or a `.safetensors` file whose metadata has the "
        "statements of `config.json`. An existing checkpoint is replaced only with `overwrite`.",
        metavar="DST",
        parse="path",
        help="the checkpoint to write: the same, or hf://org/name to push it to the Hub",
    )
    fail_on: FindingKind | Iterable[FindingKind] = option(
        default=LOSSES,
        comment="The kinds of findings (`Finding`), or one kind, that prevent `source` from "
        "being replaced if it is also `destination`; () replaces it in any case. Any other "
        "destination is written, and `CastSummary.findings` lists the findings.",
        group="losses",
        metavar="KINDS",
        parse="kinds",
        help="which losses give exit code 1: none, or of {kinds}, separated by commas "
        f"(default: {','.join(LOSSES)})",
    )
    max_zeros: float | None = option(
        default=None,
        comment="The share of a tensor's nonzero values, from 0 to 1, that may become zero "
        "without a finding, for `fail_on` and `CastSummary.findings`. By default 1 %; for "
        "quantized weights 3 % with 8 bits, 12 % with 6 bits and 50 % with 4 bits.",
        group="losses",
        metavar="SHARE",
        parse="share",
        help="the share of a tensor's nonzero values that may become zero before that is an "
        f"underflow: 0.05 or 5% (default: {MAX_ZEROS:.0%}; for quantized weights 3% with 8 bits, "
        "12% with 6, 50% with 4)",
    )
    dry_run: bool = option(
        default=False,
        comment="Write nothing, and return what each tensor would become, a `CastPlan`. "
        "castwise does not read codes and scales that keep their values.",
        group="run",
        help="write nothing; print what each tensor would become, and the space that the result "
        "needs",
    )
    measure: bool = option(
        default=False,
        comment="With `dry_run`: convert all tensors without writing them, so that the rows "
        "have reports. `.npz`, `.h5` and `.keras` need space for one file in the system's "
        "temporary folder.",
        group="run",
        help="with --dry-run: convert everything, write nothing, and print what would be lost",
    )
    resumable: bool = option(
        default=False,
        comment="If the conversion of a folder is interrupted, keep its complete shards beside "
        "`destination`. A warning names them.",
        group="run",
        help="if the conversion of a folder is interrupted, keep its complete shards beside DST",
    )
    resume: bool = option(
        default=False,
        comment="Continue an interrupted resumable conversion of the same folder, to the same "
        "result. Shards that have changed since are converted again. The run is resumable, too.",
        group="run",
        help="continue from what --resumable kept, to the same result",
    )
    part: str | tuple[int, int] | None = option(
        default=None,
        comment='Convert only this part of the bytes, such as "3/16" or `(3, 16)`, and keep it '
        "beside `destination`. The rows are those of its elements. All runs must see the same "
        "files; they may run at the same time. When all parts are converted, `finish` makes the "
        "checkpoint from them. One part decodes or quantizes a weight whole. castwise refuses a "
        "part with other arguments, and a whole run while parts exist. The destination is a "
        "`.safetensors` or `.npy` file or a folder, and the source stores tensors uncompressed.",
        group="run",
        metavar="K/N",
        help="convert only this part of the bytes, such as 3/16, in a run of its own; castwise "
        "finish makes DST from all parts",
    )
    executor: Executor | None = option(
        default=None,
        comment="The executor that converts the tensors, in batches of about 256 MiB: a "
        "`concurrent.futures.Executor` of threads, of processes, or of a cluster whose workers "
        "see the same files under the same paths: `distributed.Client.get_executor()`, "
        "`mpi4py.futures.MPIPoolExecutor()`. For Ray, write a class whose `submit(function, "
        "batch)` returns `ray.remote(function).remote(batch).future()`. The result does not "
        "depend on the executor. If a worker is lost, or the executor does not accept a batch, "
        "this process converts the batch. An error of a worker names the worker as its origin. "
        "`threads` applies to each batch. Files that `part` does not support are converted in "
        "this process.",
        check=_check_submit,
    )
    threads: int | None = option(
        default=None,
        comment="How many threads may read, convert and write. By default all cores.",
        group="run",
        metavar="N",
        parse="int",
        help="default: all cores",
    )
    progress: Callable[[Progress], None] | None = option(
        default=None,
        comment="Called when a tensor begins, now and then within a large one, and at the end. "
        "Several pieces are in flight, so a tensor may be done by then.",
    )

    def check(self) -> None:
        """Refuse to measure what is written."""
        if self.measure and not self.dry_run:
            raise CheckpointError(
                argument("measure")
                + " goes with "
                + argument("dry_run")
                + ": a conversion that is written measures its losses anyway"
            )

    @property
    def keeps_shards(self) -> bool:
        """Complete shards stay if the run is interrupted."""
        return self.resumable or self.resume


class Cast(Request):
    """Cast the tensors of a checkpoint and write a new one.

    A folder has safetensors shards, in itself or in its folders, as diffusers writes pipelines. A
    folder without such shards may have the files of torch that transformers, diffusers and peft
    load (`pytorch_model.bin`); these become safetensors. A folder becomes a folder, or one file if
    `destination` ends with `.safetensors`. Packages can add other suffixes
    (`castwise.checkpoint.containers.protocol`).

    Both paths may be URLs of object stores (`s3://...`), except for HDF5 files, and repositories of
    the Hugging Face Hub. castwise reads `hf://org/name`, or `org/name` if there is no such path. It
    pushes to `hf://org/name` as one commit with a model card.

    The destination appears, or is replaced, when it is complete. An interrupted run leaves the
    previous files. A folder on a store is the exception: it is replaced file by file. castwise
    reads, casts and writes tensors in pieces of about a mebibyte, so memory does not grow with
    their size.

    Metadata, and the bytes of tensors that are not cast, do not change.

    Returns
    -------
    The result and the losses of each tensor; a `CastPlan` if `dry_run`.

    Raises
    ------
    CheckpointError
        The source is damaged, or changes during the run; the source does not allow the request,
        such as a cast of codes or scales of a quantized weight without `raw`; `destination` exists,
        or is `source` and would lose a value; or its file system has less space than the result
        needs.
    ValueError, TypeError
        An option, the map or a format is wrong.
    OverflowError, ValueError
        A value is refused by `overflow="raise"` or `nan="raise"`; the message names tensor, index
        and value.
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

    command: ClassVar[str] = "cast"
    action: ClassVar[str] = "cast"

    dtype: object = option(
        default=None,
        comment="Format for all floating tensors. Integers, bools and complex numbers do not "
        "change. Names are those of castwise's table. castwise refuses numpy's other names, "
        'such as "f8" for float64, also in `dtype_map` and `assume`. A mapping is taken as '
        "`dtype_map`, a `DTypePolicy` as `policy`.",
        metavar="D",
        is_positional=True,
        help="format for all floating tensors, or for those that the --map does not name; fp8 is "
        "{fp8}",
    )
    dtype_map: MapArgument | DtypeMap | None = option(
        default=None,
        comment="A mapping from regular expressions to formats, a JSON or TOML file with one, "
        "or the name of a map that comes with castwise (`map_names`); see `DtypeMap`. A key "
        "decides for a tensor if it matches the whole name. A key with a floating format "
        "decides for floating tensors only, unless it is the whole name. Other floating tensors "
        "get `default`, or `dtype` if the map has no `default`. In a folder of folders, names "
        "begin with the folder: `unet/conv_in.weight`.",
        flag="--map",
        metavar="FILE|NAME",
        parse="map",
        help='JSON or TOML: {{"default": D, REGEX: D or "keep", ...}}; a key matches whole '
        "names. Or what a family of models keeps: {maps}",
    )
    policy: object = option(
        default=None,
        comment="In place of `dtype` and `dtype_map`: a `DTypePolicy` or `DTypePolicyMap`, its "
        "name, its config, or a `.json` file with the config as Keras writes it. Each floating "
        "tensor gets the dtype of its policy.",
        metavar="P",
        help="a dtype policy, such as mixed_bfloat16, or a .json file with the config of a "
        "policy or policy map as Keras writes it",
    )
    role: Role = option(
        default="variable",
        comment='Which dtype of the policy: "variable", the dtype of variables, or "compute", '
        "the dtype of computations.",
        choices=Role,
        help="which dtype of the policy: that of variables (default) or that of computations",
    )
    rounding: Rounding | None = option(
        default=None,
        comment="As in `castwise.cast`, like the next four.",
        group="rounding",
        choices=Rounding,
        help="default: as numpy, nearest-even",
    )
    overflow: Overflow = option(
        default="ieee",
        comment="{choices}.",
        group="rounding",
        choices=Overflow,
        help="beyond the range: inf or NaN (ieee, the default), the largest number, or an error",
    )
    nan: Nan = option(
        default="keep",
        comment="{choices}.",
        group="rounding",
        choices=Nan,
        help="the result for NaN (default: keep)",
    )
    seed: int | None = option(
        default=None,
        comment="For stochastic rounding; each tensor draws from `tensor_seed(seed, name)`.",
        group="rounding",
        metavar="S",
        parse="int",
        help="for stochastic rounding (default: a new one)",
    )
    like: Like | None = option(
        default=None,
        comment="The library whose bits the result has, as in `castwise.cast`. The library "
        "decides rounding, overflow and NaN for each pair of formats. castwise refuses a tensor "
        "that the library rounds twice, and names it.",
        group="rounding",
        choices=Like,
        help="cast as this library does, which decides the options above; tensors that it "
        "rounds twice are refused",
    )
    assume: str | Mapping[str, str] | None = option(
        default=None,
        comment="The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, "
        "or a mapping from name to format. castwise never guesses it.",
        metavar="D",
        help="the format of arrays that numpy saved as raw bytes (|V2)",
    )
    architecture: PathArgument | None = option(default=None, like=_ARCHITECTURE)
    keep_config: bool = option(
        default=False,
        comment="Leave a folder's `config.json` unchanged. By default its `dtype` or "
        "`torch_dtype`, also for parts of the model, changes if all floating tensors have "
        "become float32, float16 or bfloat16. Otherwise a warning explains what to set.",
        help="leave config.json unchanged, also if its dtype is then not that of the tensors",
    )
    raw: bool = option(
        default=False,
        comment="Cast codes and scales of quantized weights as if they were plain numbers. By "
        "default castwise refuses a cast that would change one of them.",
        help="cast codes and scales of quantized weights as if they were plain numbers; refused "
        "by default",
    )
    as_bytes: bool = option(
        default=False,
        comment="Store formats for which safetensors has no code, such as float8_e4m3 or int4, "
        "as bytes. castwise reads them again; other programs see numbers of uint8.",
        help="store formats for which safetensors has no code, such as float8_e4m3, as bytes "
        "that castwise reads again",
    )


class Quantize(Request):
    """Quantize the weights of a checkpoint as a producer stores them, and write a new checkpoint.

    The matrices of linear layers, and of experts stacked in one tensor, become codes and scales
    under the producer's names, with the bits that its own tools write. Embeddings, norms, routers,
    heads and adapters do not change unless the map names them; biases and all other tensors do not
    change. `config.json` states the quantization and its exceptions, and the index names the new
    tensors. castwise computes no scales of inputs, because they need data; `inputs` states that
    engines quantize inputs while the model runs, without data. A `.gguf` file, made of another or
    of a folder, gets blocks of llama.cpp (`scheme="q4_k"`).

    The destination appears when it is complete, as with `cast_file`. castwise reads, quantizes and
    writes slabs of whole blocks, so memory does not grow with the size of tensors. It reads a
    weight twice if one scale is for the whole tensor. Weights that engines fuse (q, k and v; gate
    and up) share their global scale.

    Returns
    -------
    The result of each tensor; a `CastPlan` if `dry_run`. The row of a payload has the scheme as its
    `target`, and the losses of the decoded values as its report.

    Raises
    ------
    CheckpointError
        The checkpoint is quantized already; the scheme or the recipe is unknown, or the recipe does
        not store the scheme; the recipe cannot hold a weight; a weight has infinite or NaN
        elements; no weight would be quantized; or for a reason of `cast_file`.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> summary = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> [(row.name, row.target) for row in summary.rows]
    [('fc.weight_scale', 'float32'), ('fc.weight', 'fp8_channel')]

    """

    command: ClassVar[str] = "quantize"
    action: ClassVar[str] = "quantized"

    scheme: WrittenScheme | MixName | None = option(
        default=None,
        comment="The scheme of linear layers: one of `castwise.quantization.schemes()`, or, in "
        "files of llama.cpp, a type such as 'q4_k' or a mix such as 'q4_k_m'. None: only the map "
        "decides.",
        metavar="S",
        is_positional=True,
        help="the scheme of linear layers: {schemes}; or a mix of llama.cpp, such as q4_k_m",
    )
    recipe: WrittenRecipe | None = option(
        default=None,
        comment="The producer: {choices}. By default the first of these that stores the scheme.",
        choices=WrittenRecipe,
        metavar="R",
        help="the producer whose checkpoint castwise writes: {recipes} (default: the first that "
        "stores the scheme)",
    )
    consumer: ConsumerName | None = option(
        default=None,
        comment="The program that will load the result: one of "
        "`castwise.quantization.consumers()`. Its producer is the default of `recipe`. castwise "
        "refuses what this consumer does not load, and prints no warnings about others.",
        flag="--for",
        metavar="WHO",
        help="the program that will load the result: its producer is the default, and what it "
        "does not load is refused: {consumers}",
    )
    block: Block | None = option(
        default=None,
        comment="The (rows, columns) that share a scale, if the scheme has a choice; a single "
        "number is columns. By default the producer's block.",
        metavar="N|NxM",
        parse="block",
        help="the columns, or rows and columns, that share a scale, if the scheme has a choice",
    )
    inputs: Inputs | float | None = option(
        default=None,
        like=_INPUTS,
        comment=f"{_INPUTS.comment} What the consumer needs goes before that. A number is a "
        "constant scale, by which codes of inputs are multiplied; it is stored beside each "
        "weight of NVFP4, and of FP8 by tensor if the producer has it.",
        metavar="none|dynamic|float8|SCALE",
        parse="inputs",
        help="whether the checkpoint states that inputs are quantized while the model runs "
        "(dynamic; float8 beside MXFP4), by a constant SCALE, or not (none); default: what the "
        "consumer needs, or the recipe states without data",
    )
    dtype_map: MapArgument | None = option(
        default=None,
        comment="As in `cast_file`: a mapping of regular expressions, its file, or the name of "
        'a map that comes with castwise. A scheme may replace a dtype anywhere. Under "default" '
        "it is the scheme of linear layers.",
        flag="--map",
        metavar="FILE|NAME",
        parse="map",
        help='JSON or TOML: {{"default": S, REGEX: S, D or "keep", ...}}; a key matches whole '
        "names, S is a scheme, D a dtype to cast to. Or what a family of models keeps: {maps}",
    )
    scales: Scales = option(
        default="amax",
        comment="Which scale each block gets: {choices}. The producer's tools compute it from the "
        'largest magnitude ("amax"). With "best" it is the stored one of least squared error, of '
        "nvfp4, MX and, by some recipes, integers, or what a search finds for types of llama.cpp; "
        'the largest magnitude becomes 6 or 4, whichever loses less, with "four_over_six", of '
        'nvfp4. Other schemes of a map keep "amax".',
        choices=Scales,
        help="which scale each block gets: that of its largest magnitude (amax, the default), "
        "that of least squared error, of nvfp4, MX, integers and llama.cpp's types (best), or the "
        "better one of two, of nvfp4 (four_over_six); other schemes of a --map keep amax",
    )
    zero_points: bool = option(
        default=False,
        comment="Store a zero point for each group, so that its codes reach from its least to its "
        "largest element: of int4_group and int8_group, by a recipe that stores such zero points. "
        "Other schemes of a map have none.",
        help="store a zero point for each group of int4_group and int8_group (W4A16_ASYM)",
    )
    importance: PathArgument | None = option(
        default=None,
        comment="A file with how much errors count, by input channel: the mean squares of the "
        'inputs of each weight, by which `scales="best"` multiplies squared errors, and the search '
        "of llama.cpp for its types weights them. It is what llama-imatrix of llama.cpp writes, or "
        "`.npz`, `.safetensors` or JSON with an array for each weight, of stacked experts with a "
        "row for each. Names are those of the model, or llama.cpp's. `CastSummary.importance` has "
        "the weights without numbers, which are searched without them, and the names of no weight.",
        metavar="FILE",
        parse="local path",
        help="how much the errors of each input channel count with --scales best, and for "
        "llama.cpp's types: the file that llama-imatrix of llama.cpp writes, or .npz, .safetensors "
        "or JSON with an array for each weight",
    )
    ignore: str | Sequence[str] = option(
        default=(),
        comment="Regular expressions of weights to leave unchanged. An expression must match "
        "the whole name of the weight, or of its module.",
        metavar="REGEX",
        help="leave weights unchanged whose whole names, or whose modules' names, match; as "
        "often as needed",
    )
    quantize_embeddings: bool | None = option(
        default=None,
        comment="Whether embeddings and heads get the scheme, too. By default those get one that "
        "the map names, and those of a mix.",
        metavar="yes|no",
        parse="yes or no",
        help="whether embeddings and heads get the scheme, too (default: if the --map "
        "names them, or in a mix)",
    )
    architecture: PathArgument | None = option(default=None, like=_ARCHITECTURE)


class Dequantize(Request):
    """Decode the quantized weights of a checkpoint, and write a checkpoint without quantization.

    Weights get the names and shapes of the unquantized model. castwise does not write the tensors
    that only decode weights. It leaves out the scales of inputs, outputs, attention and its caches
    with a warning, because the unquantized model has none.

    All other tensors do not change, with one exception: if `config.json` states the dtype of the
    model, tensors in bfloat16 and float16 become `dtype`, too, because libraries load all of them
    in it. In a folder, castwise removes the statements of the quantization: the sections of
    `config.json`, whose dtype becomes that of the weights, `hf_quant_config.json`,
    `quantize_config.json`, `quant_config.json`, and keys of metadata. The index names the new
    tensors.

    A GGUF file whose architecture castwise knows becomes a folder that transformers loads, with its
    configuration and tokenizer (extra `gguf`). If the destination ends with `.safetensors`, a GGUF
    file of any model becomes this file, with the names of llama.cpp.

    The destination appears when it is complete, as with `cast_file`. castwise reads, decodes and
    writes slabs of whole blocks, so memory does not grow with the size of tensors. Scales may be in
    other shards. castwise takes the size of blocks from the configuration, and never guesses it.

    Returns
    -------
    The result of each tensor; a `CastPlan` if `dry_run`. The row of a decoded weight has a
    `target`, its scheme as `source`, and the losses of decoding as its report: values that are
    infinite or NaN, and codes that are not 0 but became 0. `findings` lists them.

    Raises
    ------
    CheckpointError
        No weight is quantized, or castwise cannot decode one with certainty: a scale is missing, or
        its shape does not fit the block; a scale has no weight; the statement of the storage is
        missing or incomplete; a configuration contradicts the tensors; castwise does not decode
        this kind; or for a reason of `cast_file`.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> _ = checkpoint.dequantize_file("small.safetensors", "plain.safetensors", "float32")
    >>> checkpoint.load("plain.safetensors")["fc.weight"].dtype
    dtype('float32')

    """

    command: ClassVar[str] = "dequantize"
    action: ClassVar[str] = "decoded"
    is_plain: ClassVar[bool] = True
    kinds: ClassVar[Sequence[str]] = LOSSES

    dtype: object = option(
        default=BF16,
        comment="The format of the decoded weights: bfloat16, float16 or float32.",
        metavar="D",
        is_positional=True,
        help=f"what the weights become: {{formats}} (default: {BF16})",
    )
    arithmetic: Arithmetic = option(
        default="peer",
        comment='"peer": computed as the producer\'s library does, bit for bit, as in '
        '`castwise.quantization.dequantize`. "exact": the product of real numbers, rounded '
        "once.",
        choices=Arithmetic,
        help="computed as the producer's library does, bit for bit (peer, the default), or the "
        "product of real numbers, rounded once (exact)",
    )
    only: str | None = option(
        default=None,
        comment="A regular expression for the weights to decode. It must match their whole "
        "names in the unquantized model. All other weights remain quantized.",
        metavar="REGEX",
        help="decode only the weights whose whole names in the unquantized model match",
    )


class Transcode(Request):
    """Write a quantized checkpoint as another producer stores it, with the same values.

    Codes and scales keep their values. Their names, shapes and positions change, and so do the
    statements of the quantization. castwise converts:

    - NVFP4, MXFP8 and FP8 by tensor among ModelOpt, compressed-tensors and ComfyUI, and FP8 by
      channel among the first two;
    - MXFP4 between gpt-oss and compressed-tensors, and from GGUF files to either;
    - folders with MXFP4 of either to a GGUF file that llama.cpp runs, if castwise knows the
      architecture (extra `gguf`): names, hyperparameters and tokens become llama.cpp's, and norms,
      biases and routers become float32. The file becomes such a folder again, that of gpt-oss only
      as "gpt-oss"; a `.safetensors` file made from it has llama.cpp's names;
    - integers of 4 and 8 bits of AWQ ("gemm") and GPTQ (v1 and v2) to compressed-tensors, with zero
      points unless all are in the middle, and with the index of groups if columns are reordered.

    compressed-tensors divides by the global scale of NVFP4, and other producers multiply by it.
    castwise stores a reciprocal with which every value decodes to the same number in bfloat16 and
    in float16. The reciprocal of scales of inputs is rounded once. `verify` with
    ``arithmetic="exact"`` finds no difference in bfloat16; by default it decodes each checkpoint as
    its producer does, and producers may round differently.

    With `scheme`, MXFP4 becomes NVFP4 of compressed-tensors or ModelOpt, also the experts of
    gpt-oss in one tensor. The experts of DeepSeek-V4 become FP8 in its blocks. castwise does this
    only if the scheme represents all values, so it rounds nothing.

    The destination appears when it is complete, as with `cast_file`. All other tensors and files
    are copied. Weights pass through memory in slabs of whole blocks.

    Returns
    -------
    The result of each tensor; a `CastPlan` if `dry_run`. Rows of tensors whose storage changed have
    a `target`. The report of the codes counts the losses of decoding them to float32.

    Raises
    ------
    CheckpointError
        The checkpoint is not quantized, has this form already, or cannot be transcoded; a part is
        missing, or its shape does not fit the weight; the other form has no place for a part; no
        reciprocal of a global scale keeps all values; another scheme does not represent all values
        of a block; llama.cpp would compute something else from the GGUF file; a tensor or the
        tokenizer is missing; or for a reason of `cast_file`.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> _ = checkpoint.transcode_file("small.safetensors", "other.safetensors", "modelopt")
    >>> checkpoint.verify("small.safetensors", "other.safetensors").equal
    True

    """

    command: ClassVar[str] = "transcode"
    action: ClassVar[str] = "transcoded"
    kinds: ClassVar[Sequence[str]] = LOSSES

    recipe: TranscodedRecipe = option(
        comment="The producer: {choices}.",
        choices=TranscodedRecipe,
        flag="--to",
        metavar="R",
        is_positional=True,
        help="the producer: {forms}",
    )
    scheme: TranscodedScheme | None = option(
        default=None,
        comment="{choices}, to store the values in another scheme.",
        choices=TranscodedScheme,
        metavar="S",
        help="store the values in another scheme: {choices}",
    )
    inputs: Inputs | None = option(default=None, like=_INPUTS)
    architecture: PathArgument | None = option(default=None, like=_ARCHITECTURE)


REQUESTS = (Cast, Quantize, Dequantize, Transcode)
