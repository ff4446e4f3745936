#include "cli/commands/evaluate_options.h"

namespace tercio::cli {

OptionTable EvaluationRows(EvaluateOptions& options) {
  EvaluateOptions& o = options;
  return {
      {"--data", &o.data,
       "text or token files as for training, or labelled .jsonl, .csv or .tsv (default with "
       "--job: its data.test)"},
      {"--metric", &o.metric,
       "perplexity, loss, last_word_accuracy; for classifiers accuracy, precision, recall, f1 "
       "(default perplexity or accuracy)"},
      {"--text-key", &o.text_key, "key or column of the text (default text)"},
      {"--text-pair-key", &o.text_pair_key, "key or column of the second text (default text_pair)"},
      {"--label-key", &o.label_key, "key or column of the label (default label)"},
      {"--job", &o.job_file,
       "evaluate with the ranks, layout, batches, keys and tokenizer of this job file"},
      {"--stride",
       &o.stride,
       "tokens from the start of a window to the start of the next; below the context, windows "
       "overlap (default: the context)",
       {Accepts(CLI::Range(1, 1 << 20))}},
      {"--write-logits", &o.write_logits,
       "directory to create with the largest logits of each token that the job of --job predicts, "
       "for training.distillation.logits"},
      {"--top-k",
       &o.top_k,
       "logits of each token to write (default 64)",
       {Accepts(CLI::Range(1, 1 << 20))}},
  };
}

}  // namespace tercio::cli
