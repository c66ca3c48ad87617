package deduptest

import (
	"context"

	"github.com/waybill-go/waybill/internal/suitetest"
	"github.com/waybill-go/waybill/subscription/dedup"
)

// rule is one check of a store of documents, of which one and other are clients.
type rule struct {
	run      func(ctx context.Context, one, other dedup.Documents) error
	contract suitetest.Contract
}

const (
	overwritten = "of two messages for one entity that are handled at once, one's effect is overwritten."
	condition   = "let the store itself compare: If-Match, a condition on the version, a transaction; and return dedup.ErrConflict where it says no."
)

var documents = map[string]rule{
	"Missing":                        {missing, suitetest.Of("A document that isn't there is nil at the revision \"\", without an error.", "the first message of an entity can't be handled.", "tell \"not found\" from failures.")},
	"CreatedOnce":                    {createdOnce, suitetest.Of("Swap at the revision \"\" creates a document once, and is a dedup.ErrConflict where there is one.", overwritten, condition)},
	"ConcurrentUpdateFails":          {concurrentUpdateFails, suitetest.Of("Of two who replace the same revision, the second is told dedup.ErrConflict.", overwritten, condition)},
	"OldRevisionFails":               {oldRevisionFails, suitetest.Of("Each Swap gives a revision that the document never had, also where its bytes are the same, and an old revision replaces nothing.", overwritten, "take a counter or a time of the store's for the revision, not a hash of the content.")},
	"GetReturnsDeepCopy":             {deepCopy, suitetest.Of("What is handed in and out belongs to the caller, who may change it.", "a handler that fails halfway has changed the stored state.", "copy bytes on the way in and out.")},
	"KeysAreDifferent":               {keysAreDifferent, suitetest.Of("Any two different keys, of any bytes, have documents of their own.", "two entities share one state.", "encode keys that the store can't have, so that each stays different.")},
	"BytesAreKept":                   {bytesAreKept, suitetest.Of("Documents come back byte by byte, also empty ones.", "a state can't be read any more.", "store bytes, not text.")},
	"OfManyWritersOneWinsEachChange": {manyWriters, suitetest.Of("Under many writers every Swap that returned nil is in the document.", overwritten, condition)},
	"EmptyKeyIsRefused":              {emptyKey, suitetest.Of("The empty key is an error.", "messages without an entity share one.", "refuse it before the store is asked.")},
	"DoneContext":                    {doneContext, suitetest.Of("With a context that is done both calls fail, and not with a conflict.", "a handler that was told to stop goes on.", "look at the context first.")},
}

var processed = suitetest.Of(
	"What Add has added is seen by Has, by every client and at once, also by those who were told no before; ids of any bytes are different; empty ids and contexts that are done are errors.",
	"a message has its effect twice.",
	"read where you write: no replica that lags behind, no cache of answers, no rewriting of ids that makes two of them equal.",
)
