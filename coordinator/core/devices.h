// Which free devices the ranks of a job get, where devices differ: the GPUs of a tensor group are
// of one model, so that none waits for a slower one at every layer, and nodes of one job have the
// same NCCL, since different versions do not talk to each other.
//
// Pure. Views into the state, which must outlive what is in here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tercio::coordinator {

struct FreeDevice {
  std::string_view node;
  int device = 0;
  std::string_view model;  // empty of CPU slots
  std::string_view nccl;   // version; empty: not known
};

struct DeviceWish {
  int ranks = 1;
  int tensor = 1;         // ranks of a tensor group; 0: not known yet, so all are to be alike
  bool one_nccl = false;  // ranks of several nodes talk over NCCL
  // Without a known tensor degree: devices of several models, as no model has enough of them. The
  // layout is then one whose tensor groups are alike.
  bool mixes = false;
};

// For ranks 0, 1, ... in this order; empty when these devices do not suffice. Of devices that are
// all alike the first ones.
std::vector<FreeDevice> ChooseDevices(const std::vector<FreeDevice>& free, const DeviceWish& wish);

// Why there are enough devices and yet not those that are wished for. REQUIRES: ChooseDevices has
// found none.
std::string WhyNoDevices(const std::vector<FreeDevice>& free, const DeviceWish& wish);

}  // namespace tercio::coordinator
