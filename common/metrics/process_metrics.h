// Metrics of the process itself, for both daemons: build, process, certificates.
//
// Threads: any.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/metrics/metrics_page.h"

namespace tercio {

// Reads /proc at every call; what cannot be read has no series.
void AddProcessMetrics(absl::string_view version, absl::string_view commit, MetricsPage* page);

// PEM files, read at every call, so that a renewed certificate shows; a path that is empty, or a
// file without a certificate, has no series. The first certificate of a file counts.
void AddCertificateMetrics(const std::string& certificate, const std::string& authority,
                           MetricsPage* page);

}  // namespace tercio
