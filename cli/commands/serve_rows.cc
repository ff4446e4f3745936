#include "cli/commands/serve_rows.h"

#include "common/daemon/flag_values.h"

namespace tercio::cli {

OptionTable ServeRows(ServeOptions& o) {
  return {
      {"--listen", &o.listen, "HOST:PORT to listen on; port 0 picks a free one"},
      {"--model-name", &o.name,
       "name of the model in requests (default: the last part of the checkpoint's path)"},
      {"--adapter",
       &o.adapters,
       "adapter that requests may name: NAME=DIR, or DIR, named by the last part of its path",
       {Repeats()}},
      {"--template", &o.chat_template,
       "chat template by name (docs/chat.md), plain, or auto, the one the tokenizer comes "
       "with"},
      {"--slots", &o.slots, "texts to continue at once", {Accepts(CLI::Range(1, 1024))}},
      {"--cache-tokens",
       &o.cache_tokens,
       "tokens of all texts with memory for keys and values (default: slots times context)",
       {Accepts(CLI::Range(1, 1 << 30))}},
      {"--max-queue",
       &o.max_queue,
       "texts that may wait for a slot; further ones are refused (429)",
       {Accepts(CLI::Range(1, 1 << 20))}},
      {"--max-body",
       &o.max_body,
       "largest request body in bytes (413)",
       {Accepts(CLI::Range(1024, 1 << 28))}},
      {"--max-connections",
       &o.max_connections,
       "connections at the same time",
       {Accepts(CLI::Range(1, 1 << 16))}},
      {"--grace",
       &o.grace,
       "time for running requests after SIGTERM (e.g. 30s)",
       {Converted(InSeconds()), Accepts(Between(0, 1e6))}},
      {"--api-key-file", &o.api_key_file,
       "file with a key on each line, one of which clients must send"},
      {"--tls-cert", &o.server_tls.certificate, "certificate of the server (PEM)"},
      {"--tls-key", &o.server_tls.key, "private key of the certificate (PEM)"},
      {"--tls-ca", &o.server_tls.authority, "authority whose certificates clients must have (PEM)"},
      {"--insecure", &o.insecure, "allow an address off loopback without TLS and keys"}};
}

}  // namespace tercio::cli
