// Integer types by their widths.
#pragma once

using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;
