#include "coordinator/core/devices.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tercio::coordinator {
namespace {

using Devices = std::vector<FreeDevice>;

// Groups the devices by a value, in the order in which the values appear.
std::vector<Devices> GroupBy(const Devices& devices, std::string_view FreeDevice::*member) {
  std::vector<Devices> groups;
  std::map<std::string_view, size_t> places;
  // The state lists devices by node name, so that the order of the groups is the same each time.
  for (const FreeDevice& device : devices) {
    const auto [place, added] = places.try_emplace(device.*member, groups.size());
    if (added) groups.emplace_back();
    groups[place->second].push_back(device);
  }
  return groups;
}

Devices First(const Devices& devices, int count) {
  return {devices.begin(), devices.begin() + count};
}

Devices ChooseByModel(const Devices& free, const DeviceWish& wish) {
  const std::vector<Devices> models = GroupBy(free, &FreeDevice::model);
  // Ranks of one model are best: every rank of the job then takes equally long.
  for (const Devices& alike : models) {
    if (static_cast<int>(alike.size()) >= wish.ranks) return First(alike, wish.ranks);
  }
  Devices chosen;
  for (const Devices& alike : models) {
    // Without a known layout any two ranks might share a tensor group, so a mix is no answer where
    // devices that are alike will do.
    if (wish.tensor == 0 && !wish.mixes) break;
    const int missing = wish.ranks - static_cast<int>(chosen.size());
    // A tensor group is cut from one model only; what is left of that model stays free.
    const int group = std::max(1, wish.tensor);
    const int whole = static_cast<int>(alike.size()) / group * group;
    const Devices part = First(alike, std::min(missing, whole));
    chosen.insert(chosen.end(), part.begin(), part.end());
  }
  return static_cast<int>(chosen.size()) == wish.ranks ? chosen : Devices();
}

// "3 x NVIDIA A100, 5 x NVIDIA H200".
std::string Counts(const Devices& free, std::string_view FreeDevice::*member) {
  std::vector<std::string> parts;
  for (const Devices& alike : GroupBy(free, member)) {
    const std::string_view name = alike.front().*member;
    parts.push_back(
        absl::StrCat(alike.size(), " x ", name.empty() ? "unknown" : std::string(name)));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

std::vector<FreeDevice> ChooseDevices(const std::vector<FreeDevice>& free, const DeviceWish& wish) {
  if (static_cast<int>(free.size()) < wish.ranks) return {};
  if (!wish.one_nccl) return ChooseByModel(free, wish);
  for (const Devices& alike : GroupBy(free, &FreeDevice::nccl)) {
    if (const Devices chosen = ChooseByModel(alike, wish); !chosen.empty()) return chosen;
  }
  // A node by itself has one version, whatever it is: it was among those above.
  return {};
}

std::string WhyNoDevices(const std::vector<FreeDevice>& free, const DeviceWish& wish) {
  if (static_cast<int>(free.size()) < wish.ranks) return "";
  if (wish.one_nccl && !ChooseByModel(free, wish).empty()) {
    return absl::StrCat("the nodes of a job need the same NCCL version: ",
                        Counts(free, &FreeDevice::nccl));
  }
  const std::string group = wish.tensor == 0
                                ? std::string("all GPUs (parallelism: auto)")
                                : absl::StrCat("the ", wish.tensor, " GPUs of a tensor group");
  return absl::StrCat(group, " must be of the same model: ", Counts(free, &FreeDevice::model));
}

}  // namespace tercio::coordinator
