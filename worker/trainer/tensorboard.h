// Writes the steps of a job into a directory in TensorBoard's format. Rank 0 has one.
//
// Every attempt writes a file of its own, which begins with the step from which it continues:
// TensorBoard then drops that step and later ones of previous attempts, so that each step is shown
// once. A directory belongs to the first job that writes into it; others get a folder in it, named
// by their id, which TensorBoard shows as a run of its own.
//
// Training never waits for the directory and never fails because of it: a thread of the object's
// own writes, records that cannot be written are dropped, and the log reports that once.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/trainer.pb.h"

namespace tercio::trainer {

class TensorBoardWriter {
 public:
  // Returns immediately; null if the job names no directory.
  static std::unique_ptr<TensorBoardWriter> Start(const v1::TrainerAssignment& assignment,
                                                  const v1::RunId& run);
  // Waits until everything is written, but not long if the directory does not answer.
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Requires that the step has a record.
  void Add(const v1::TrainerStep& report);
  // The outcome of the job's test data.
  void AddTest(const v1::Evaluation& evaluation);

 private:
  struct Shared;
  explicit TensorBoardWriter(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void Write(std::string record);

  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
};

}  // namespace tercio::trainer
