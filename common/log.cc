#include "common/log.h"

#include <memory>
#include <string>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace tercio {

void InitLogging(std::string_view program) {
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

void LogInfo(std::string_view text) { spdlog::info("{}", std::string(text)); }
void LogWarning(std::string_view text) { spdlog::warn("{}", std::string(text)); }
void LogError(std::string_view text) { spdlog::error("{}", std::string(text)); }

}  // namespace tercio
