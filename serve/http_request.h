// HTTP/1.1 requests out of a stream of bytes, strictly: what two readers could understand in two
// ways is refused. Bodies have a Content-Length.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tercio::serve {

struct HttpRequest {
  std::string method;
  std::string path;                            // without the query
  std::map<std::string, std::string> headers;  // names in lower case; the first of equal names
  std::string body;
  bool keep_alive = true;
};

struct HttpError {
  int code = 0;  // 400 | 408 | 411 | 413 | 431 | 505
  std::string message;
};

struct RequestLimits {
  size_t header_bytes = size_t{16} << 10;
  size_t body_bytes = size_t{1} << 20;
};

class HttpRequestParser {
 public:
  explicit HttpRequestParser(const RequestLimits& limits) : limits_(limits) {}

  enum class State { kNeedsMore, kComplete, kFailed };
  // After kFailed nothing more can be read from the stream.
  State Consume(std::string_view bytes);
  // Bytes have arrived of a request that is not complete.
  bool begun() const { return !buffer_.empty() || head_.has_value(); }
  // Whether the client waits for "100 Continue" before it sends the body; once for each request.
  bool TakeWaitsForContinue();
  // REQUIRES: kComplete. The next request may be complete, too: see Consume("").
  HttpRequest Take();
  // REQUIRES: kFailed.
  const HttpError& error() const { return error_; }

 private:
  State Fail(int code, std::string message);
  State ParseHead(std::string_view head);
  bool ParseHeader(std::string_view line);
  State ReadLength();

  const RequestLimits limits_;
  std::string buffer_;
  std::optional<HttpRequest> head_;  // its headers are complete
  size_t body_bytes_ = 0;
  bool waits_for_continue_ = false;
  HttpError error_;
};

}  // namespace tercio::serve
