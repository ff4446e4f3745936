// Names of tensors and of parts by patterns. Pure.
#pragma once

#include <string_view>

namespace tercio::model {

// Whether `pattern` describes the whole name; `*` stands for any characters, also none.
bool MatchesPattern(std::string_view name, std::string_view pattern);

}  // namespace tercio::model
