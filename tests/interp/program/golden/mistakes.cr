#import pred
#import pos_even
#import nope
#import pos_mod3_3
cut = # "a" &&
single = "a" & "b"
if = 3
open = cut + (1
n = # "a"
both = n2 == 3 && #"a" && "b"   // two
n = 3
pred = "a"
guard = pred4 == 2
bare = pred == 2
early = late + "x"
late = n
self = self
chain = 3 == 2 == 1
equals = n = 3
foreign = #[foo] "a"
known = #[pred2] "a"
formula = #[pos_even] "a"
quote = 'a'
unclosed = "a
words = "a" or "b"
nothing 3
right = n * 3
min = 4
few = min(3)
two = 3 4
ended = "a" && // no more
negative = -"a"
long = 12345678901234567890
token = W
future = #>[pred] "a"
