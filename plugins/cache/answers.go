package cache

import (
	"container/list"
	"crypto/sha256"
	"sync"

	"github.com/tollgate-gateway/tollgate/plugins"
)

// overhead is about what an answer takes besides its bytes.
const overhead = 512

type entry struct {
	key    [sha256.Size]byte
	answer *plugins.Answer
}

func (e *entry) size() int { return len(e.answer.Body) + overhead }

// answers keeps what was used last, within a number of bytes. Libraries of this kind count entries.
type answers struct {
	mu    sync.Mutex
	room  int // bytes that are free
	byKey map[[sha256.Size]byte]*list.Element
	order *list.List // of *entry; what was used last is in front
}

func newAnswers(bytes int) *answers {
	return &answers{room: bytes, byKey: make(map[[sha256.Size]byte]*list.Element), order: list.New()}
}

func (s *answers) get(key [sha256.Size]byte) *plugins.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.byKey[key]
	if at == nil {
		return nil
	}
	s.order.MoveToFront(at)
	return at.Value.(*entry).answer //nolint:forcetypeassert // nothing else is in the list
}

func (s *answers) put(key [sha256.Size]byte, a *plugins.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.byKey[key]; at != nil {
		s.drop(at)
	}
	e := &entry{key, a}
	s.byKey[key] = s.order.PushFront(e)
	s.room -= e.size()
	for s.room < 0 {
		s.drop(s.order.Back())
	}
}

func (s *answers) drop(at *list.Element) {
	e := s.order.Remove(at).(*entry) //nolint:forcetypeassert // nothing else is in the list
	delete(s.byKey, e.key)
	s.room += e.size()
}
