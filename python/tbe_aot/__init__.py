"""Table batched embedding lookups for PyTorch: Triton kernels, compiled ahead of time.

Importing this package loads libtbe_aot.so, which registers ``torch.ops.tbe_aot.*``. Nothing is compiled here, and
triton is not needed.
"""

from importlib.metadata import PackageNotFoundError, version

from . import _library

_library.load()

# After the library, hence E402: these register fakes of its operators.
from . import operators  # noqa: E402
from .explanations import Explanation, explain, explain_backward  # noqa: E402
from .features import FeatureMetadata, TableSpec, make_features  # noqa: E402
from .inspection import build_info, preload  # noqa: E402
from .module import TableBatchedEmbeddingBags  # noqa: E402
from .optimizers import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad  # noqa: E402
from .vbe import vbe_layout  # noqa: E402

try:
    __version__ = version("tbe-aot")
except PackageNotFoundError:  # the tree itself, not installed
    __version__ = "0+tree"

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Explanation",
    "FeatureMetadata",
    "Optimizer",
    "RowwiseAdagrad",
    "TableBatchedEmbeddingBags",
    "TableSpec",
    "__version__",
    "build_info",
    "explain",
    "explain_backward",
    "make_features",
    "operators",
    "preload",
    "vbe_layout",
]
