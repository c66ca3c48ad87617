// Package subscription consumes streams: a message's effect happens once, in the
// order of its key, or the message is parked where people can see it.
//
// The effect and the message's row in the inbox are one transaction, so a
// message that is delivered again, however often, has no second effect. What a
// handler does outside that transaction can happen more than once.
package subscription
