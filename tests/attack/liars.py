"""liars.py: jobs of 4: two liars about a third (w1), other honest. lock step, 2 nodes, lease 2 s. Also: self-doubt (worker names itself), named by its own second connection, liar names itself with a second rank, doubted overflow, reconnect; a lone liar with many reconnects counted as two; the liar joined under two ranks after expected rank taken; joins as second connection of the victim (same name)."""
exec(open('a4.py').read().split("job='a4'")[0])
why=lambda p: subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%p],capture_output=True,text=True).stdout[:400]
# 1: one liar repeats from many connections (second connections of the same incarnation)
job='L1'; w0=W(job,0,3,10).beater(); w1=W(job,1,3,11).beater(); l=W(job,2,3,12); l2=W(job,2,3,12,name='w2'); 
for k in range(10):
    for x in (l,l2):
        for i in (0,1): x.beat1(i,[(1,11,k%2)])
    time.sleep(.1)
say('L1 one liar, two connections, 10 rounds',states(job),w1.log[:2]); w0.stop=w1.stop=True
# 2: liar leaves its rank and joins as higher incarnations between words
job='L2'; w0=W(job,0,3,10).beater(); w1=W(job,1,3,11).beater(); inc=12
for k in range(8):
    l=W(job,2,3,inc); inc+=1
    for i in (0,1): l.beat1(i,[(1,11,k%2)])
    for c in l.cs: c.close()
    time.sleep(.1)
say('L2 one liar with 8 incarnations',states(job),w1.log[:2]); w0.stop=w1.stop=True
# 3: two liars of 4
for tag,rounds in (('L3 two liars, suspect then agreed',[(0,),(0,),(1,),(1,)]),('L3b two liars, agreed at once, shard 0 only',[(1,)])):
    job=tag[:3].strip(); w0=W(job,0,4,10).beater(); w1=W(job,1,4,11).beater(); la=W(job,2,4,12); lb=W(job,3,4,13); sh=(0,1) if 'only' not in tag else (0,)
    t=time.time(); 
    for g, in rounds:
        for x in (la,lb):
            for i in sh: say('   ',[q[0].st for q in [x.beat1(i,[(1,11,g)])]]) if 0 else x.beat1(i,[(1,11,g)])
        time.sleep(.1)
    say(tag,states(job),'victim',w1.log[:2]); 
    for k in range(10):
        for x in (la,lb): x.beat1(0); x.beat1(1)
        time.sleep(.3)
    say('    3 s later',states(job),'victim log',w1.log[-1:],'w0',w0.log[-1:],why(pa)); w1.stop=True; v=W(job,1,4,20,name='w1'); say('    victim joins anew',v.st,states(job)); w0.stop=True
    for w in (w0,w1,la,lb,v):
        for c in w.cs: c.close()
# 4: worker names itself: does it kill itself?
job='L4'; w0=W(job,0,3,10).beater(); w1=W(job,1,3,11); w2=W(job,2,3,12).beater()
for k in range(6):
    r=[w1.beat1(i,[(1,11,k>3)])[0].st for i in (0,1)]; time.sleep(.2)
say('L4 names itself for 1.2 s, heard by both',r,states(job)); 
# liar + self doubt: self says to shard 0 only; liar says too
r=w1.beat1(0,[(1,11,0)])[0].st; w2.stop=True; time.sleep(.3); r2=w2.beat1(0,[(1,11,0)])[0].st; say('   self-doubt and one liar at shard 0',r,r2,states(job)); w0.stop=True
# 5: the liar is the last non-relaying... job of 3 whose third is not yet joined/expected/dead: "One is enough if no other worker relays, or is expected"
job='L5'; w0=W(job,0,3,10,relays=0).beater(False); w1=W(job,1,3,11,relays=0).beater(False); l=W(job,2,3,12)
r=[l.beat1(i,[(1,11,0)])[0].st for i in (0,1)]; time.sleep(.2); say('L5 others do not relay: one word',r,states(job),w1.log[:1]); r=[l.beat1(i,[(1,11,1)])[0].st for i in (0,1)]; time.sleep(.3); say('   agreed',r,states(job)); 
for k in range(12): l.beat1(0,[(1,11,1)]); l.beat1(1,[(1,11,1)]); time.sleep(.25)
say('   3 s later',states(job),why(pa)); w0.stop=w1.stop=True
# 6: the liar first cuts w0 (relaying) out: makes all others leave/hang?  job of 3: w0 leaves; now 2 live: one word
job='L6'; w0=W(job,0,3,10); w1=W(job,1,3,11).beater(); l=W(job,2,3,12); [c.call(LEAVE) for c in w0.cs]
r=[l.beat1(i,[(1,11,1)])[0].st for i in (0,1)]; r=[l.beat1(i,[(1,11,1)])[0].st for i in (0,1)]; time.sleep(.2); say('L6 third left: one word',r,states(job),w1.log[:1])
for k in range(10): [l.beat1(i,[(1,11,1)]) for i in (0,1)]; time.sleep(.25)
say('   2.5 s later',states(job)); w1.stop=True
# 7: liar joins job as a victim's second connection with the victim's name: closes 16 others, moves clock
job='L7'; w0=W(job,0,2,10,mode=3).beater(); w1=W(job,1,2,11,mode=3).beater(); ev=W(job,1,2,11,name='w1',relays=0); r=[c.call(PUSH,push_head(1,0,1,1)).st for c in ev.cs]; say('L7 impostor of same name and incarnation: join',ev.st,'pushes its number 1',r,'victim then',[c.call(PUSH,push_head(1,0,1,1)) for c in w1.cs])
w0.stop=w1.stop=True
# 8: member that stops relaying after it has begun; third dies; park-max
say('stop',A.stop(),B.stop())
