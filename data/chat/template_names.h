// The names of chat templates (data/chat/template.h), for those who need no more than that. Pure.
#pragma once

#include <string_view>

#include "absl/types/span.h"

namespace tercio::data::chat {

inline constexpr std::string_view kTemplateNames[] = {
    "chatml", "llama2", "llama3", "llama3.1", "vicuna",  "alpaca",
    "zephyr", "gemma",  "phi3",   "qwen",     "mistral",
};

inline absl::Span<const std::string_view> TemplateNames() { return kTemplateNames; }

}  // namespace tercio::data::chat
