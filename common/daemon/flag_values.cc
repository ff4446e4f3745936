#include "common/daemon/flag_values.h"

#include <limits>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace tercio {

CLI::Validator InSeconds() {
  return CLI::AsNumberWithUnit(
      // A number without a unit counts as seconds.
      std::map<std::string, double>{{"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
      CLI::AsNumberWithUnit::CASE_SENSITIVE);
}

CLI::Validator Between(double least, double most) {
  const auto fault = [least, most](std::string& text) -> std::string {
    double value = 0;
    // CLI11 passes values as text, behind the transformation of units.
    const bool number = CLI::detail::lexical_cast(text, value);
    if (number && value >= least && value <= most) return "";
    // A range without an upper end is described without it.
    return most < std::numeric_limits<double>::max()
               ? absl::StrCat(text, " is not a number from ", least, " to ", most)
               : absl::StrCat(text, " is not a number of at least ", least);
  };
  return CLI::Validator(fault, "");
}

}  // namespace tercio
