package history

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// decideTime bounds the search for an order of one history's operations. It takes
// milliseconds for all of them together.
const decideTime = time.Minute

// Broken is a history that is not linearizable, or could not be decided.
type Broken struct {
	What   string // a set, or a stretch of a lock's queue
	Result porcupine.CheckResult
	model  porcupine.Model
	info   porcupine.LinearizationInfo
	epoch  time.Time // zero where operations have places instead of times
}

// check returns b, as it turns out to be, unless the history is right.
func check(b Broken, history []porcupine.Operation) []Broken {
	if b.Result = porcupine.CheckOperationsTimeout(b.model, history, decideTime); b.Result == porcupine.Ok {
		return nil
	}
	_, b.info = porcupine.CheckOperationsVerbose(b.model, history, decideTime)
	return []Broken{b}
}

// Fault is something that was broken for a while, to be shown in a picture.
type Fault struct {
	Lane, What string
	From, To   time.Time
}

// SavePicture writes a page that shows the history, how far an order was found, and
// the faults meanwhile.
func (b *Broken) SavePicture(file string, faults []Fault) error {
	if !b.epoch.IsZero() {
		var notes []porcupine.Annotation
		for _, f := range faults {
			notes = append(notes, porcupine.Annotation{
				Tag: f.Lane, Start: int64(f.From.Sub(b.epoch)), End: int64(f.To.Sub(b.epoch)), Description: f.What,
			})
		}
		b.info.AddAnnotations(notes)
	}
	return porcupine.VisualizePath(b.model, b.info, file)
}
