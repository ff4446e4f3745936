// Descriptors of the emulated cuDNN: attributes by name, and the rules for them. Internal to the
// emulation.
#pragma once

#include <cudnn.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace tercio::emulation {

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, std::vector<unsigned char>> values;
  int engine = 0;  // number of an engine, for an engine, its configuration, or a plan

  bool Has(cudnnBackendAttributeName_t name) const { return values.count(name) > 0; }
  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> all(found->second.size() / sizeof(T));
    if (!all.empty()) std::memcpy(all.data(), found->second.data(), found->second.size());
    return all;
  }
  template <typename T>
  T One(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    const auto found = values.find(name);
    if (found != values.end()) std::memcpy(&otherwise, found->second.data(), sizeof(T));
    return otherwise;
  }
  // The descriptor that it names; null if there is none.
  const Descriptor* Of(cudnnBackendAttributeName_t name) const;
};

// Reports the reason on stderr and to cudnnGetLastErrorString; returns the status.
cudnnStatus_t RefuseCudnn(cudnnStatus_t status, const std::string& why);

// The live descriptor of a handle, or null. Handles are numbers that are never used again.
Descriptor* FindDescriptor(cudnnBackendDescriptor_t handle);
int64_t LiveDescriptors();

// Whether this one and all that it names are alive and finalized.
bool IsUsable(cudnnBackendDescriptor_t handle);

}  // namespace tercio::emulation
