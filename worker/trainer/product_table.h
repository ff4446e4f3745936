// Algorithms of matrix products, as plans carry them and as nodes keep them in a file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/product_algorithms.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::trainer {

void AddProduct(const kernels::cuda::ProductShape& shape,
                const kernels::cuda::ProductAlgorithm& algorithm, v1::ProductTable* table);

// Adds the table's algorithms for shapes that `to` does not have. Invalid entries are ignored, and
// algorithms that want more than `workspace_bytes`: other jobs and versions may have had more.
void TakeProducts(const v1::ProductTable& table, int64_t workspace_bytes,
                  kernels::cuda::ProductAlgorithms* to);

// A file of a node with the choices of its ranks, so that no shape is timed twice: one for each
// model of GPU and version of the library. Threads and processes: any.
class ProductCache {
 public:
  // `directory` need not exist yet.
  ProductCache(const std::string& directory, const std::string& gpu, const std::string& library);

  // Empty if there is none, or it is damaged.
  v1::ProductTable Read() const;
  // Adds entries that the file does not have, or has only with more workspace than products get
  // (kernels/cuda/scratch.h).
  absl::Status Add(const v1::ProductTable& table) const;

 private:
  const std::string directory_;
  const std::string gpu_;
  const std::string library_;
  const std::string path_;
};

}  // namespace tercio::trainer
