// Messages as versions wrote them that kept words of closed sets as text: in stores, in agent.db,
// and from an agent that was not restarted yet. Such a word stands under a field number that is
// reserved now, so it is found among the unknown fields of the parsed message.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace tercio::plan {

// Turns such words, also those of messages inside, into the enumerators of today's fields. Has no
// effect on a message of this version. FAILED_PRECONDITION: a word that no version has written.
// Values of maps are left out: none has words.
absl::Status UpgradeWords(google::protobuf::Message* message);

}  // namespace tercio::plan
