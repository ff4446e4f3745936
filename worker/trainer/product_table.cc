#include "worker/trainer/product_table.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "kernels/cuda/scratch.h"

namespace tercio::trainer {
namespace {

using kernels::Format;
using kernels::cuda::kProductWorkspaceBytes;
using kernels::cuda::ProductAlgorithm;
using kernels::cuda::ProductAlgorithms;
using kernels::cuda::ProductEpilogue;
using kernels::cuda::ProductKind;
using kernels::cuda::ProductShape;

// Reads an enum; false: not one of `most` + 1 values.
template <typename Enum>
bool Number(int value, Enum most, Enum* to) {
  *to = static_cast<Enum>(value);
  return value >= 0 && value <= static_cast<int>(most);
}

// Tables come from files and from other processes, perhaps of another version.
// An entry that does not fit is left out, and its product is timed again.
bool Parse(const v1::ProductAlgorithm& from, ProductShape* shape, ProductAlgorithm* algorithm) {
  shape->m = from.m();
  shape->n = from.n();
  shape->k = from.k();
  shape->bias = from.bias();
  shape->accumulate = from.accumulate();
  shape->tf32 = from.tf32();
  algorithm->workspace_bytes = from.workspace_bytes();
  if (from.alignment_size() != static_cast<int>(shape->alignment.size()) ||
      from.words_size() != static_cast<int>(algorithm->words.size())) {
    return false;
  }
  std::copy(from.alignment().begin(), from.alignment().end(), shape->alignment.begin());
  std::copy(from.words().begin(), from.words().end(), algorithm->words.begin());
  // The last value of each enum is its bound.
  return Number(from.kind(), ProductKind::kScaledFast, &shape->kind) &&
         Number(from.operands(), Format::kE5m2, &shape->operands) &&
         Number(from.result(), Format::kFloat16, &shape->result) &&
         Number(from.epilogue(), ProductEpilogue::kBiasGradient, &shape->epilogue);
}

// Names of GPUs and versions hold characters that mean something in paths.
std::string FileName(const std::string& gpu, const std::string& library) {
  std::string name = absl::StrCat(gpu, " ", library);
  for (char& letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '-';
  }
  return name;
}

}  // namespace

void AddProduct(const ProductShape& shape, const ProductAlgorithm& algorithm,
                v1::ProductTable* table) {
  v1::ProductAlgorithm* to = table->add_algorithms();
  to->set_kind(static_cast<int>(shape.kind));
  to->set_operands(static_cast<int>(shape.operands));
  to->set_result(static_cast<int>(shape.result));
  to->set_m(shape.m);
  to->set_n(shape.n);
  to->set_k(shape.k);
  to->set_epilogue(static_cast<int>(shape.epilogue));
  to->set_bias(shape.bias);
  to->set_accumulate(shape.accumulate);
  to->set_tf32(shape.tf32);
  to->mutable_alignment()->Add(shape.alignment.begin(), shape.alignment.end());
  to->mutable_words()->Add(algorithm.words.begin(), algorithm.words.end());
  to->set_workspace_bytes(algorithm.workspace_bytes);
}

void TakeProducts(const v1::ProductTable& table, int64_t workspace_bytes, ProductAlgorithms* to) {
  for (const v1::ProductAlgorithm& entry : table.algorithms()) {
    ProductShape shape;
    ProductAlgorithm algorithm;
    // An algorithm that is in use already is not replaced.
    if (!Parse(entry, &shape, &algorithm) || algorithm.workspace_bytes > workspace_bytes) continue;
    to->emplace(shape, algorithm);
  }
}

ProductCache::ProductCache(const std::string& directory, const std::string& gpu,
                           const std::string& library)
    : directory_(directory),
      gpu_(gpu),
      library_(library),
      path_(absl::StrCat(directory, "/", FileName(gpu, library), ".pb")) {}

v1::ProductTable ProductCache::Read() const {
  v1::ProductTable table;
  const absl::StatusOr<std::string> bytes = ReadFile(path_);
  // Two names can become one file name, so the table has them in full.
  if (!bytes.ok() || !table.ParseFromString(*bytes) || table.gpu() != gpu_ ||
      table.library() != library_) {
    table.Clear();
    table.set_gpu(gpu_);
    table.set_library(library_);
  }
  return table;
}

absl::Status ProductCache::Add(const v1::ProductTable& table) const {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory_));
  // Ranks of several jobs on this node may add to the file at the same time.
  TERCIO_ASSIGN_OR_RETURN(const auto lock, FileLock::Acquire(path_ + ".lock", WhenHeld::kWait));
  // It is read under the lock, so that what another rank adds meanwhile is not lost.
  v1::ProductTable all = Read();
  ProductAlgorithms known;
  TakeProducts(all, kProductWorkspaceBytes, &known);
  // The first choice stays, so that jobs with the same products compute the same bits.
  TakeProducts(table, kProductWorkspaceBytes, &known);
  // What no job can use is not written again.
  all.clear_algorithms();
  for (const auto& [shape, algorithm] : known) AddProduct(shape, algorithm, &all);
  // Read takes no lock: it finds the old file or the new one.
  return WriteFileDurably(path_, all.SerializeAsString());
}

}  // namespace tercio::trainer
