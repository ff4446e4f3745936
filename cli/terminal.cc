#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/check.h"
#include "common/exit_codes.h"

namespace tercio::cli {
namespace {

// The alternate screen, no cursor, no wrapping at the right border; and back.
constexpr std::string_view kTakeOver = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kGiveBack = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

// A crash must not leave the terminal without a cursor.
constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGHUP, SIGQUIT};

// Used by signal handlers.
char final_text[256];
volatile sig_atomic_t final_length = 0;
volatile sig_atomic_t taken = 0;

// Signal handlers call this, so that nothing here may allocate or lock.
void WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(STDERR_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the terminal is gone
    text.remove_prefix(static_cast<size_t>(count));
  }
}

void GiveBack() {
  if (taken == 0) return;
  // The mark is cleared first, so that a second signal does not write again.
  taken = 0;
  WriteAll(kGiveBack);
}

// Starts a new line after the "^C" of the terminal or a line that is being redrawn; the alternate
// screen has neither.
void OnStop(int signal) {
  if (taken == 0 && final_length > 0 && isatty(STDERR_FILENO) != 0) WriteAll("\n");
  GiveBack();
  WriteAll({final_text, static_cast<size_t>(final_length)});
  _exit(signal == SIGTERM ? kExitTerminated : kExitInterrupted);
}

// Restores the screen, then lets the signal take its default effect.
void OnCrash(int signal) {
  GiveBack();
  // The default effect includes the core dump that people look for.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

bool Is(const char* variable, std::string_view value) {
  const char* found = std::getenv(variable);
  return found != nullptr && value == found;
}

}  // namespace

bool CanDraw() {
  const char* term = std::getenv("TERM");
  // A dumb terminal shows escapes as text.
  return term != nullptr && *term != '\0' && !Is("TERM", "dumb");
}

bool WantsColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  // The convention of no-color.org: any value but an empty one counts.
  return CanDraw() && (no_colour == nullptr || *no_colour == '\0');
}

Glyphs GlyphsOfLocale() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    // The first variable that is set decides, as in the C library.
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    const bool unicode = locale.find("UTF-8") != std::string_view::npos ||
                         locale.find("utf8") != std::string_view::npos;
    return unicode ? Glyphs::kBlocks : Glyphs::kAscii;
  }
  return Glyphs::kAscii;
}

void EndAtInterrupts() {
  std::signal(SIGINT, OnStop);
  std::signal(SIGTERM, OnStop);
}

LastWords::LastWords(const std::string& words) {
  TERCIO_CHECK(final_length == 0);
  // A longer text is cut: a handler cannot allocate.
  const size_t length = std::min(words.size(), sizeof(final_text));
  std::memcpy(final_text, words.data(), length);
  final_length = static_cast<sig_atomic_t>(length);
}

LastWords::~LastWords() { final_length = 0; }

Screen GetScreen() {
  Screen screen;
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    screen.width = size.ws_col;
    screen.height = size.ws_row;
  }
  screen.colour = WantsColour();
  screen.glyphs = GlyphsOfLocale();
  return screen;
}

TerminalView::TerminalView() {
  TERCIO_CHECK(taken == 0);
  for (const int crash : kCrashes) std::signal(crash, OnCrash);
  taken = 1;
  WriteAll(kTakeOver);
}

TerminalView::~TerminalView() { GiveBack(); }

// Clears each line after its end, and the screen below the last line, so that nothing flickers.
void TerminalView::Draw(const std::string& text) {
  std::string bytes = "\x1b[H";
  for (const char c : text) {
    if (c == '\n') bytes += "\x1b[K\r";
    bytes += c;
  }
  WriteAll(bytes + "\x1b[K\x1b[J");
}

}  // namespace tercio::cli
