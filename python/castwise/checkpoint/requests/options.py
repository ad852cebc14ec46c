"""Each option of a conversion, once: its type, default, comment, check and flag of the command.

`Cast`, `Quantize`, `Dequantize` and `Transcode` describe a result, and `Run` how it is made. The
public functions, their stub and the commands are made from the fields.
"""
# ruff: noqa: ANN401  (values of fields of any type)

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, dataclass_transform

from castwise._options import (
    SAFETENSORS,
    Arithmetic,
    Block,
    ConsumerName,
    FindingKind,
    Inputs,
    Like,
    MapArgument,
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
from castwise.quantization.producers.registry import TYPED
from castwise.text.wording import argument, check_switch

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OptionDescription:
    """What is to be known of an option beside its name, type and default."""

    comment: str
    """Its paragraph in the documentation of the functions; {choices} are those of `choices`."""
    help: str | None = None
    """Its help on the command line, where words in braces are lists; None where it has none."""
    flag: str | None = None
    """Its name on the command line, if that does not follow from its name in Python."""
    metavar: str | None = None
    group: str = "target"
    """The group of the command's help."""
    choices: Any = None
    """The Literal of its values."""
    parse: str | None = None
    """How its text is read: a row of `castwise.cli._arguments.PARSERS`."""
    is_positional: bool = False
    """The functions take it without its name, after `source` and `destination`."""
    check: Callable[[object], None] | None = None
    """Refuses values before anything is read."""


def option(
    *, default: Any = MISSING, description: OptionDescription | None = None, **values: Any
) -> Any:
    """Return a field with a description, or with one made of its values."""
    return field(default=default, metadata={"option": description or OptionDescription(**values)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def _options(kind: type[_Kind]) -> type[_Kind]:
    """Make a frozen dataclass of options."""
    return dataclass(frozen=True, eq=False, repr=False, kw_only=True)(kind)


def fields_of(kind: object) -> tuple[Field[Any], ...]:
    """Return the fields of a request or a run, or of a class of them."""
    return fields(kind)  # type: ignore[arg-type]


def description_of(field: Field[Any]) -> OptionDescription:
    """Return the description of a field."""
    description: OptionDescription = field.metadata["option"]
    return description


def _check_submit(value: object) -> None:
    """Refuse what has no `submit`, such as a class instead of its instance."""
    submits = callable(getattr(value, "submit", None)) and not isinstance(value, type)
    if value is not None and not submits:
        raise TypeError(
            f"executor must have submit(), as an Executor of concurrent.futures, not {value!r}"
        )


def check_fields(options: Request | Run) -> None:
    """Let each field refuse a value that it cannot have."""
    for each in fields_of(options):
        value, check = getattr(options, each.name), description_of(each).check
        if check is not None:
            check(value)
        if each.type == "bool":
            check_switch(each.name, value)


_INPUTS = OptionDescription(
    comment='What is stated of the inputs of the quantized layers. "dynamic": they are quantized '
    "while the model runs, as the producer's preset of that scheme has it, so that engines "
    'multiply codes by codes. "none": they are not, and engines decode the weights. By default '
    "what the producer states without data.",
    choices=Inputs,
    help="what is stated of inputs: quantized while the model runs (dynamic), or not (none); "
    "default: what the recipe states without data",
)
_ARCHITECTURE = OptionDescription(
    comment="A file with what the parameters of the model are, where castwise does not know the "
    "class or the type that `config.json` states. A cast takes it with the name of a map.",
    metavar="FILE",
    parse="local path",
    help="what the parameters are of a model that castwise does not know: a file in the format "
    "of its table of architectures",
)


@_options
class Request:
    """All that decides what is made of the source."""

    command: ClassVar[str]
    action: ClassVar[str]
    """What it does to tensors, as a summary has it."""
    kinds: ClassVar[Sequence[str]] = FINDINGS
    """The findings that can be counted."""
    decodes: ClassVar[bool] = True
    """The source may be a file whose tensors must be decoded."""
    is_plain: ClassVar[bool] = False
    """What is written is not quantized, so that any container can hold it."""

    source: PathArgument = option(
        comment="The checkpoint to read: a `.safetensors`, `.npz`, `.npy`, `.h5` or `.keras` "
        "file, a file of torch (`.pt`, `.pth`, `.bin`, `.ckpt`), a folder of shards, a URL of a "
        "store, or `org/name` of the Hugging Face Hub.",
        metavar="SRC",
        parse="path",
        help="the checkpoint to read: a file, a folder, a URL of a store, or org/name of the "
        "Hugging Face Hub",
    )
    overwrite: bool = option(
        default=False,
        comment="Replace `destination` if it is a file, or a folder with a checkpoint; also "
        "`source` itself.",
        group="files",
        help="replace DST if it is there: a file, or a folder with a checkpoint; also SRC "
        "itself, unless that loses what --fail-on names",
    )
    include: str | Sequence[str] = option(
        default=(),
        comment="Globs of files of a folder to copy that are otherwise left out: `.git` and "
        "`.cache`, states of optimizers and trainers, and the same weights in other formats or "
        "variants. A glob is compared with the path in the folder and with the name, of files "
        "and of folders.",
        group="files",
        metavar="GLOB",
        help="copy files of a folder that are otherwise left out: .git and .cache, states of "
        "optimizers and trainers, the same weights in other formats and variants; as often as "
        "needed",
    )
    exclude: str | Sequence[str] = option(
        default=(),
        comment="Globs of files of a folder to leave out, also with tensors.",
        group="files",
        metavar="GLOB",
        help="leave files of a folder out, also those with tensors; as often as needed",
    )
    max_shard_size: int | str | None = option(
        default=None,
        comment="Divide the tensors anew into shards of at most so many bytes, an int or text "
        'such as "5GB" or "2GiB", with the names and the index that transformers writes. A file '
        "then becomes a folder if `destination` is the name of one.",
        group="files",
        metavar="SIZE",
        help="divide the tensors into shards of at most that size, such as 5GB or 2GiB; a file "
        "then becomes a folder if DST is the name of one",
    )

    def __post_init__(self) -> None:
        """Check the fields; take mappings as dicts, which can be sent to other processes."""
        check_fields(self)
        for each in fields_of(self):
            value = getattr(self, each.name)
            if isinstance(value, Mapping) and not isinstance(value, DTypePolicyMap):
                object.__setattr__(self, each.name, dict(value))

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds what is written."""
        return SAFETENSORS


@_options
class Run:
    """How a result is made and where it is written; none of it changes a value."""

    destination: PathArgument = option(
        comment="The checkpoint to write: a file or a folder as `source` may be, not of torch, "
        "also `source` itself, or `hf://org/name` to push to. A quantized one is a folder, or "
        "one `.safetensors` file, whose metadata then state what `config.json` does else. What "
        "is there is replaced only with `overwrite`.",
        metavar="DST",
        parse="path",
        help="the checkpoint to write: the same, or hf://org/name to push it to the Hub",
    )
    fail_on: FindingKind | Iterable[FindingKind] = option(
        default=LOSSES,
        comment="The kinds of findings (`Finding`), or one, that leave `source` as it was if "
        "`destination` is the same; () to replace it whatever is lost. Elsewhere the result is "
        "written, and `CastSummary.findings` lists them.",
        group="losses",
        metavar="KINDS",
        parse="kinds",
        help="which losses give exit code 1: none, or of {kinds}, separated by commas "
        f"(default: {','.join(LOSSES)})",
    )
    max_zeros: float | None = option(
        default=None,
        comment="The share of a tensor's nonzero values, from 0 to 1, that may become zero "
        "before that is an underflow, for `fail_on` and `CastSummary.findings`. By default 1 %, "
        "or of weights that are quantized what so few bits give: 3 % for 8, 50 % for 4.",
        group="losses",
        metavar="SHARE",
        parse="share",
        help="the share of a tensor's nonzero values that may become zero before that is an "
        f"underflow: 0.05 or 5% (default: {MAX_ZEROS:.0%}, or of weights that are quantized "
        "what so few bits give: 3% for 8, 50% for 4)",
    )
    dry_run: bool = option(
        default=False,
        comment="Write nothing and return what would become of every tensor, a `CastPlan`. Codes "
        "and scales that keep their values are not read.",
        group="run",
        help="write nothing; print what would become of each tensor, and the room for it",
    )
    measure: bool = option(
        default=False,
        comment="With `dry_run`: convert everything all the same, so that the rows have their "
        "reports. `.npz`, `.h5` and `.keras` need room for one file where the system has "
        "temporary ones.",
        group="run",
        help="with --dry-run: convert everything, write nothing, and print what would be lost",
    )
    resumable: bool = option(
        default=False,
        comment="If the conversion of a folder is interrupted, keep the shards that are "
        "complete, beside `destination`; a warning names them.",
        group="run",
        help="if the conversion of a folder is interrupted, keep its complete shards beside DST",
    )
    resume: bool = option(
        default=False,
        comment="Go on with what a resumable conversion of the same folder kept; the result is "
        "the same. Shards that are not as they were written are converted again. Resumable "
        "itself.",
        group="run",
        help="go on with what --resumable kept; the same result",
    )
    part: str | tuple[int, int] | None = option(
        default=None,
        comment='Convert only this part of the bytes, such as "3/16" or `(3, 16)`, and keep it '
        "beside `destination`; the rows are of its elements. When all parts are converted, by "
        "runs that see the same files, at the same time or not, `finish` makes the checkpoint of "
        "them. A weight is decoded or quantized whole by one of them. One with other arguments "
        "is refused, and so is a whole run as long as there are parts. Only into `.safetensors` "
        "and `.npy` files and folders, of tensors that stand uncompressed.",
        group="run",
        metavar="K/N",
        help="convert only this part of the bytes, such as 3/16, in a run of its own; castwise "
        "finish makes DST of all parts",
    )
    executor: Executor | None = option(
        default=None,
        comment="Who converts the tensors, in batches of about 256 MiB: a "
        "`concurrent.futures.Executor` of threads or processes, or of a cluster whose workers "
        "see the same files under the same paths: `distributed.Client.get_executor()`, "
        "`mpi4py.futures.MPIPoolExecutor()`; for Ray a class whose `submit(function, batch)` "
        "returns `ray.remote(function).remote(batch).future()`. The result does not depend on "
        "it. A batch whose worker is lost, or that is not taken, is converted in this process; "
        "an error of a worker says that it is one. `threads` is for each batch. Files that "
        "`part` is not for are converted in this process.",
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

    def __post_init__(self) -> None:
        """Check the fields, and what goes together."""
        check_fields(self)
        if self.measure and not self.dry_run:
            raise CheckpointError(
                f"{argument('measure')} goes with {argument('dry_run')}: a conversion that is "
                "written measures its losses anyway"
            )

    @property
    def keeps_shards(self) -> bool:
        """Complete shards stay if the run is interrupted."""
        return self.resumable or self.resume


@_options
class Cast(Request):
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

    Returns
    -------
    What each tensor became and what that lost; a `CastPlan` if `dry_run`.

    Raises
    ------
    CheckpointError
        The source is damaged or changes while it is read; what is asked makes no sense for it, such
        as another format for the payload or a scale of a quantized weight without `raw`;
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

    command: ClassVar[str] = "cast"
    action: ClassVar[str] = "cast"

    dtype: object = option(
        default=None,
        comment="Format for all floating tensors. Integers, bools and complex numbers stay. "
        'Names are those of the table; numpy\'s others, as "f8" for float64, are refused, also '
        "in `dtype_map` and `assume`. A mapping is taken as `dtype_map`, a `DTypePolicy` as "
        "`policy`.",
        metavar="D",
        is_positional=True,
        help="format for all floating tensors, or for those that the --map does not name; fp8 is "
        "{fp8}",
    )
    dtype_map: MapArgument | DtypeMap | None = option(
        default=None,
        comment="A mapping, a JSON or TOML file, or the name of a map that comes with castwise "
        "(`map_names`): regular expression to format; see `DtypeMap`. A key that matches a name "
        "wholly decides for it; a format of floats concerns floating tensors only, unless the "
        "key is the whole name. `default` is for the other floating tensors. A map without "
        "`default` takes `dtype` as that. In a folder of folders the name begins with the "
        "folder: `unet/conv_in.weight`.",
        flag="--map",
        metavar="FILE|NAME",
        parse="map",
        help='JSON or TOML: {{"default": D, REGEX: D or "keep", ...}}; a key matches whole '
        "names. Or what a family of models keeps: {maps}",
    )
    policy: object = option(
        default=None,
        comment="Instead of both, a `DTypePolicy` or `DTypePolicyMap`, its name, its config, or "
        "a `.json` file with the config as Keras writes it. Each floating tensor gets the dtype "
        "of its policy.",
        metavar="P",
        help="a dtype policy, such as mixed_bfloat16, or a .json file with the config of a "
        "policy or policy map as Keras writes it",
    )
    role: Role = option(
        default="variable",
        comment='Which dtype of the policy: "variable", what variables are kept in, or "compute".',
        choices=Role,
        help="which dtype of the policy: what variables are kept in (default) or computed in",
    )
    rounding: Rounding | None = option(
        default=None,
        comment="As in `castwise.cast`, like the four after it.",
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
        help="what becomes of NaN (default: keep)",
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
        comment="The library whose bits are wanted, as in `castwise.cast`: it decides rounding, "
        "overflow and NaN for each pair of formats. A tensor that it rounds twice is refused by "
        "name.",
        group="rounding",
        choices=Like,
        help="cast as this library does, which decides the options above; a tensor that it "
        "rounds twice is refused",
    )
    assume: str | Mapping[str, str] | None = option(
        default=None,
        comment="The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, "
        "or a mapping from name to format. Nothing is guessed.",
        metavar="D",
        help="the format of arrays that numpy saved as raw bytes (|V2)",
    )
    architecture: PathArgument | None = option(default=None, description=_ARCHITECTURE)
    keep_config: bool = option(
        default=False,
        comment="Leave a folder's `config.json` as it is. Else its `dtype` or `torch_dtype`, "
        "also those of a model's parts, follow the tensors if all floating ones have become "
        "float32, float16 or bfloat16; otherwise a warning says what to set.",
        help="leave config.json as it is: its dtype then need not be that of the tensors",
    )
    raw: bool = option(
        default=False,
        comment="Cast codes and scales of quantized weights as if they were plain numbers. Else "
        "a cast that would change one of them is refused.",
        help="cast codes and scales of quantized weights as if they were plain numbers, which "
        "otherwise is refused",
    )
    as_bytes: bool = option(
        default=False,
        comment="Whether a safetensors file may hold formats that it has no code for, such as "
        "float8_e4m3 or int4, as bytes. castwise reads them again; others see numbers of uint8.",
        help="let safetensors files hold formats that they have no code for, such as "
        "float8_e4m3, as bytes that castwise reads again",
    )


@_options
class Quantize(Request):
    """Quantize the weights of a checkpoint, as a producer stores them, and write a new one.

    The matrices of linear layers, and of experts stacked in one tensor, become the codes and scales
    that the producer's own tools make of them, bit for bit, under its names. Embeddings, norms,
    routers, heads and adapters stay as they are unless the map names them, and so do biases and all
    other tensors. `config.json` states the quantization, and the modules that it leaves out; the
    index names the new tensors. No scales of inputs are made: those need data. `inputs` states that
    inputs are quantized while the model runs, which needs none.

    It appears when it is complete, as with `cast_file`. Slabs of whole blocks are read, quantized
    and written, so memory does not grow with the size of tensors. Weights with a scale of the whole
    tensor are read twice. What engines fuse (q, k and v; gate and up) shares its global scale.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. The row of a payload has the scheme as its
    `target`, and what the decoded values lost as its report.

    Raises
    ------
    CheckpointError
        The checkpoint is quantized already; the scheme and the recipe do not go together, or one of
        them is unknown; the recipe cannot hold a weight; a weight has infinite or NaN elements; no
        weight would be quantized; or what makes `cast_file` raise it.
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
    decodes: ClassVar[bool] = False

    scheme: WrittenScheme | None = option(
        default=None,
        comment="What linear layers become: one of `castwise.quantization.schemes()`. None: only "
        "what the map says.",
        metavar="S",
        is_positional=True,
        help="what linear layers become: {schemes}",
    )
    recipe: WrittenRecipe | None = option(
        default=None,
        comment="The producer: {choices}. By default the first of these that stores the scheme.",
        choices=WrittenRecipe,
        metavar="R",
        help="whose checkpoint it is: {recipes} (default: the first of them that stores the "
        "scheme)",
    )
    consumer: ConsumerName | None = option(
        default=None,
        comment="Who is to load the result: one of `castwise.quantization.consumers()`, whose "
        "producer is the default of `recipe`. What it does not load is refused, and no warning "
        "is about others.",
        flag="--for",
        metavar="WHO",
        help="who is to load the result: what it does not load is refused, and its producer is "
        "the default: {consumers}",
    )
    block: Block | None = option(
        default=None,
        comment="The (rows, columns) that share a scale, where the scheme has a choice; one "
        "number is columns. By default the producer's.",
        metavar="N|NxM",
        parse="block",
        help="the columns, or rows and columns, that share a scale, where the scheme has a choice",
    )
    inputs: Inputs | float | None = option(
        default=None,
        description=replace(
            _INPUTS,
            comment=f"{_INPUTS.comment} What the consumer needs goes before that. A number is a "
            "constant scale, by which codes of inputs are multiplied; it is stored beside each "
            "weight of NVFP4, and of FP8 by tensor if the producer has it.",
            metavar="none|dynamic|SCALE",
            parse="inputs",
            help="what is stated of inputs: quantized while the model runs (dynamic), by a "
            "constant SCALE, or not (none); default: what the recipe states without data, or the "
            "consumer needs",
        ),
    )
    dtype_map: MapArgument | None = option(
        default=None,
        comment="As in `cast_file`, a mapping of regular expressions, its file, or the name of a "
        "map that comes with castwise. A scheme may stand wherever a dtype may, also under "
        '"default": then it is that of linear layers.',
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
        "nvfp4, MX and, by some recipes, integers; the largest magnitude becomes 6 or 4, whichever "
        'loses less, with "four_over_six", of nvfp4. Other schemes of a map keep "amax".',
        choices=Scales,
        help="which scale each block gets: that of its largest magnitude (amax, the default), "
        "that of least squared error, of nvfp4, MX and integers (best), or the better one of two, "
        "of nvfp4 (four_over_six); others of a --map keep amax",
    )
    ignore: str | Sequence[str] = option(
        default=(),
        comment="Regular expressions that match the whole names of weights, or of their modules, "
        "to leave.",
        metavar="REGEX",
        help="leave the weights whose whole names, or whose modules', match; as often as needed",
    )
    quantize_embeddings: bool = option(
        default=False,
        comment="Whether embeddings and heads get the scheme, too. Else those alone do that the "
        "map names.",
        metavar="yes|no",
        parse="yes or no",
        help="whether embeddings and heads become that, too (default: those that the --map names)",
    )
    architecture: PathArgument | None = option(default=None, description=_ARCHITECTURE)


@_options
class Dequantize(Request):
    """Decode the quantized weights of a checkpoint and write a new one without quantization.

    Weights get the names and shapes that they have in the unquantized model; the tensors that only
    decode them are not written, and the scales of inputs, outputs, attention and its caches, which
    that model does not have, are left out with a warning. All other tensors stay as they are, byte
    for byte; but where `config.json` states the dtype of the model, those in bfloat16 and float16
    become what the weights become, as libraries load all of them in that. In a folder, what states
    the quantization goes: the sections of `config.json`, whose dtype becomes that of the weights,
    `hf_quant_config.json`, `quantize_config.json`, `quant_config.json`, and keys of metadata; the
    index names the new tensors.

    A GGUF file whose architecture castwise knows becomes a folder that transformers loads, with its
    configuration and tokenizer (extra `gguf`), unless the destination ends with .safetensors: that
    has the names of llama.cpp, of any model.

    It appears when it is complete, as with `cast_file`. Slabs of whole blocks are read, decoded and
    written, so memory does not grow with the size of tensors; scales may be in other shards.

    Nothing is guessed: sizes of blocks are those that a configuration states.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. A weight that was decoded has a `target`,
    as `source` its scheme, and as report what decoding lost: values that are infinite or NaN, and
    codes that are not 0 but became 0; `findings` lists them.

    Raises
    ------
    CheckpointError
        No weight is quantized; or one cannot be decoded for certain: a scale is missing, or has not
        the shape that the block needs; a scale has no weight; nothing, or not everything, says how
        it is stored; a configuration contradicts the tensors; castwise does not decode its kind; or
        what makes `cast_file` raise it.
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
        comment="What the weights become: bfloat16, float16 or float32.",
        metavar="D",
        is_positional=True,
        help=f"what the weights become: {{formats}} (default: {BF16})",
    )
    arithmetic: Arithmetic = option(
        default="peer",
        comment='"peer": as the producer\'s library does it, bit for bit, as in '
        '`castwise.quantization.dequantize`. "exact": the product of real numbers, rounded once.',
        choices=Arithmetic,
        help="as the producer's library does it, bit for bit (peer, the default), or the product "
        "of real numbers, rounded once (exact)",
    )
    only: str | None = option(
        default=None,
        comment="A regular expression that matches the whole names of the weights to decode, as "
        "they are in the unquantized model; the others stay quantized.",
        metavar="REGEX",
        help="decode only the weights whose whole names, as of the unquantized model, match",
    )


@_options
class Transcode(Request):
    """Write a quantized checkpoint as another producer stores it, with the same values.

    Codes and scales stay; names and shapes change, where they lie, and what states the
    quantization. From one to another go

    - NVFP4, MXFP8 and FP8 by tensor of ModelOpt, compressed-tensors and ComfyUI, and FP8 by channel
      of the first two,
    - MXFP4 of gpt-oss and compressed-tensors, and of GGUF files to either,
    - MXFP4 of both to a GGUF file, which llama.cpp runs, if castwise knows the architecture (extra
      `gguf`): a folder with its configuration and tokenizer, whose names, hyperparameters and
      tokens become llama.cpp's, and whose norms, biases and routers float32;
      a folder that such a file becomes has all that again (that of gpt-oss as "gpt-oss" alone),
      and a .safetensors file its own names,
    - integers of AWQ ("gemm") and of GPTQ (v1 and v2) to compressed-tensors, of 4 and 8 bits, with
      their zero points unless all are in the middle, and with the index of groups if columns are
      reordered.

    compressed-tensors divides by the global scale of NVFP4 and others multiply: its reciprocal is
    one with which every value decodes to the same in bfloat16 and in float16. That of the scales of
    inputs is rounded once. `verify` with ``arithmetic="exact"`` finds no difference in bfloat16;
    by default it decodes each as its producer does, which may round otherwise.

    With `scheme`, MXFP4 becomes NVFP4 of compressed-tensors or ModelOpt, also the experts of
    gpt-oss in one tensor, and the experts of DeepSeek-V4 become FP8 in its blocks, where these
    have all values, so that nothing is rounded.

    It appears when it is complete, as with `cast_file`; all other tensors and files are copied.
    Weights pass through memory in slabs of whole blocks.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. Those have a `target` that are not as they
    were stored. The report of the codes counts what decoding them to float32 loses.

    Raises
    ------
    CheckpointError
        The checkpoint is not quantized, is stored so already, or cannot be transcoded;
        a part is missing or has another shape than its weight needs; the other form has no place
        for one of its parts; no reciprocal of a global scale leaves all values what they are;
        another scheme does not have all values of a block; llama.cpp would compute something else
        of a GGUF file, or a tensor or the tokenizer is missing; or what makes `cast_file` raise it.
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
        comment="{choices}, if another scheme is to hold the values.",
        choices=TranscodedScheme,
        metavar="S",
        help="another scheme to hold the values: {choices}",
    )
    inputs: Inputs | None = option(default=None, description=_INPUTS)
    architecture: PathArgument | None = option(default=None, description=_ARCHITECTURE)

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds what is written."""
        return f".{TYPED}" if self.recipe == TYPED else SAFETENSORS


REQUESTS = (Cast, Quantize, Dequantize, Transcode)
