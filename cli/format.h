// The output formats of the CLI: JSON with the documented keys for programs, tables and lines for
// people. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

using Json = nlohmann::ordered_json;

std::string StateName(v1::JobState state);  // "running"
bool IsTerminal(v1::JobState state);
int ExitCodeOfState(v1::JobState state);

Json JobToJson(const v1::JobStatus& job);
Json StepToJson(const v1::StepRecord& step);
// The step of such an object: null and missing numbers that every step has are NaN. nullopt: it has
// no step above 0.
std::optional<v1::StepRecord> StepFromJson(const Json& json);
Json EventToJson(const v1::JobEvent& event);
Json LogToJson(const v1::LogLine& line);
Json NodeToJson(const v1::Node& node);
Json FiguresToJson(const v1::MachineFigures& figures);
Json CheckpointToJson(const v1::CheckpointInfo& checkpoint);
Json LayoutToJson(const v1::Layout& layout);
// The pipeline degree, with the layers of stages where these differ: "4 (7, 9, 9, 7)".
std::string PipelineText(const v1::Layout& layout);
// What a layout has beside degrees, layers and micro-batches, as the planner may have chosen it:
// "virtual_pipeline 2, recompute full"; empty: nothing.
std::string SettingsText(const v1::Layout& layout);
Json PlanReportToJson(const v1::PlanReport& report);

// RFC 3339, UTC; empty when not set.
std::string TimeText(const google::protobuf::Timestamp& time);

// "loading 3.1 of 84.0 GB".
std::string LoadingText(const v1::LoadProgress& loading);

// "step 120/2000  6.0%  loss 2.3456  1234 tok/s  ETA 1m20s  checkpoint 12s ago"; now in seconds
// since 1970.
std::string ProgressLine(const v1::JobStatus& job, double now);

// A table of the time of each rank, in shares, and its memory, for the first `most` ranks.
std::string RankTable(const v1::JobStatus& job, size_t most);

// 1536 -> "1.5 KiB"
std::string SizeText(int64_t bytes);

// 75 -> "1m15s"
std::string DurationText(double seconds);

}  // namespace tercio::cli
